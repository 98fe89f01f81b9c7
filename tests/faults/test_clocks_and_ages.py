"""Clocks that jump, connections that grow old, trainers that move, streams that come and go."""

import asyncio
import time

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.supervise import System
from osmosis_grpc.trainer import RolloutClient, Trainer, TrainerConfig
from tests.callback_trainer import CallbackTrainer
from tests.faults.kill_loop.agents import Passenger, Traveller
from tests.faults.kill_loop.trainer import requests
from tests.faults.pure import Counted, check_equal, gathering, undisturbed
from tests.faults.soak import held, resident
from tests.ports import quiet_port
from tests.waiting import until

COUNT = 20
AGENTS = (Passenger(), Traveller())
QUICK = {"outbox_delay": (0.02, 0.2), "retry_delay": (0.02, 0.1), "sweep_interval": 0.05}


@pytest.mark.long
@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["ahead", "back"])
async def test_a_wall_clock_that_jumps_expires_nothing(tmp_path, jump):
    """Even what is kept for a minute only, and has an hour's jump in its middle."""
    expected = await undisturbed(tmp_path, COUNT)
    policy, outcomes, ahead = Counted(tmp_path), [], [0.0]
    system = System()
    system.time = lambda: time.time() + ahead[0]
    config = ServerConfig(**QUICK, record_ttl=60.0)
    async with AgentServer(AGENTS, port=0, config=config, state_dir=tmp_path / "state", system=system) as server:
        async with Trainer(server.address, policy) as trainer:
            policy.gate.clear()
            at_work = gathering(trainer, COUNT, outcomes)
            await until(lambda: policy.open >= COUNT)
            ahead[0] = jump
            await asyncio.sleep(0.2)  # swept, and swept again
            policy.gate.set()
            await at_work
            ahead[0] = 0.0
            await asyncio.sleep(0.2)  # swept with the clock as it is now
        assert server.engine.outbox.expired == 0
    check_equal(outcomes, expected, policy)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["attach", "callback"])
async def test_connections_that_get_goaway(tmp_path, transport):
    """Every connection lives for a quarter of a second at most."""
    expected = await undisturbed(tmp_path, COUNT)
    policy, outcomes = Counted(tmp_path), []
    async with AgentServer(AGENTS, port=0, config=ServerConfig(**QUICK, max_connection_age=0.25)) as server:
        config = TrainerConfig(longest_pause=0.05, max_connection_age=0.25)
        async with Trainer(server.address, policy, transport=transport, config=config) as trainer:
            policy.gate.clear()
            at_work = gathering(trainer, COUNT, outcomes)
            reading = asyncio.create_task(_numbers(trainer, "r1"))
            await asyncio.sleep(1.0)  # four lives
            policy.gate.set()
            await at_work
            numbers = await reading
            assert numbers == list(range(1, len(numbers) + 1))
    check_equal(outcomes, expected, policy)


async def _numbers(trainer, rollout_id: str) -> list[int]:
    await asyncio.sleep(0.1)  # time for more events
    return [event.event_number async for event in trainer.events(rollout_id)]


@pytest.mark.long
async def test_a_trainer_that_comes_back_at_another_address(tmp_path):
    """The trainer sends equal Inits with its new callback; replies that were given are given again."""
    expected = await undisturbed(tmp_path, COUNT)
    policy, ledger, outcomes = Counted(tmp_path), tmp_path / "ledger.db", []
    config = ServerConfig(**QUICK)
    async with AgentServer(AGENTS, port=0, config=config, state_dir=tmp_path / "state") as server:
        async with Trainer(server.address, policy, transport="callback", ledger=ledger) as first:
            at_work = gathering(first, COUNT, [])
            await until(lambda: len(policy.calls) >= 3 * COUNT)
            old = first.address
        await at_work
        async with Trainer(server.address, policy, transport="callback", ledger=ledger) as second:
            assert second.address != old
            await gathering(second, COUNT, outcomes)
    assert {outcome.attempt for outcome in outcomes} == {1}
    assert max(policy.calls.values()) <= 2, "what was not committed is sampled again, once"
    policy.calls.clear()
    check_equal(outcomes, expected, policy)


TOKEN = "a-token-by-which-a-trainer-knows-its-callbacks"


async def test_a_trainer_that_stops_with_chats_open_ends_no_rollout(tmp_path):
    """grpc cancels a stopping server's handlers; to the agent server that is a cut, and no answer."""
    policy, port = Counted(tmp_path), quiet_port()
    async with (
        AgentServer(AGENTS, port=0, config=ServerConfig(**QUICK)) as server,
        RolloutClient(server.address) as client,
    ):
        policy.gate.clear()
        async with CallbackTrainer(policy, tokens=TOKEN, port=port) as trainer:
            (request,) = list(requests(2, {"r0"}))
            await client.init(request, callback=trainer.callback())
            await until(lambda: policy.open)
        policy.gate.set()
        async with CallbackTrainer(policy, tokens=TOKEN, port=port) as trainer:
            assert (await trainer.outcome("r1", 20)).status == "COMPLETED"


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_ten_thousand_streams_leave_nothing_behind(tmp_path):
    """Streams of events of a client that never reads and leaves."""
    streams, warm = 10_000, 2_000
    policy, outcomes = Counted(tmp_path), []
    async with AgentServer(AGENTS, port=0) as server, Trainer(server.address, policy) as trainer:
        await gathering(trainer, COUNT, outcomes)
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = services_pb2_grpc.RolloutServiceStub(channel)

            async def come_and_go(count: int) -> None:
                for number in range(count):
                    one = control_pb2.StreamEventsRequest(rollout_id=f"r{number % COUNT}")
                    call = stub.StreamEvents(one if number % 2 else control_pb2.StreamEventsRequest())
                    if number % 4 > 1:
                        await call.read()
                    call.cancel()

            await come_and_go(warm)
            await asyncio.sleep(1.0)  # longer than a lifetime
            before, size = held(["self"]), resident(["self"])
            await come_and_go(streams)
            await asyncio.sleep(1.0)  # longer than a lifetime
            after, grown = held(["self"]), resident(["self"]) - size
    print(f"\n{grown / streams:.0f} bytes a stream, both ends in this process; {before} -> {after}")
    assert after == before
    assert grown / streams < 1000, "500 at each end: grpc#43360 leaks some of its own"
