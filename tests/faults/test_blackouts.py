"""A network that goes dark for seconds, and readers that are too slow."""

import asyncio
from typing import Any

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, check_whole, requests
from tests.attach.servers import ServerProcess
from tests.callback_trainer import CallbackTrainer
from tests.faults.soak import resident

DARK, LIGHT, TIMES = 5.0, 3.0, 4


async def blackouts(proxy: CuttingProxy) -> None:
    """Nothing passes for some seconds, and then all that was held back; connections stay."""
    for _ in range(TIMES):
        await asyncio.sleep(LIGHT)  # connected
        proxy.hold("up", "down", new=True)
        await asyncio.sleep(DARK)  # without a connection
        proxy.release("up", "down")


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_blackouts_under_load(stack, tmp_path):
    """Over an attachment and with callbacks at a time; each is dark for five seconds, four times."""
    server = await stack.enter_async_context(ServerProcess("--state-dir", str(tmp_path)))
    attached, called, outcomes = CountingPolicy(), CountingPolicy(), []
    trainer = await stack.enter_async_context(CallbackTrainer(called))
    up = await stack.enter_async_context(CuttingProxy(server.address))
    back = await stack.enter_async_context(CuttingProxy(trainer.address))
    client = await stack.enter_async_context(RolloutClient(server.address))
    other = await stack.enter_async_context(Trainer([up.address], attached))
    dark = [asyncio.create_task(blackouts(proxy)) for proxy in (up, back)]
    asked = list(requests("dark", 400, think=0.5))
    night = list(requests("night", 60, think=4.0))

    async def gather() -> None:
        async for outcome in other.run(asked, max_in_flight=16):
            outcomes.append(outcome)

    at_work = asyncio.create_task(gather())
    for request in night:
        await client.init(request, callback=trainer.callback(target=back.address))
        await asyncio.sleep(0.1)  # calls in a row, not at once
    await asyncio.gather(*dark)
    ended = [await trainer.outcome(request.rollout_id, 60) for request in night]
    await at_work
    check_run([request.rollout_id for request in asked], outcomes, attached)
    for outcome in ended:
        check_whole(outcome, called.replies.get)
    assert called.asked_twice == []
    assert {outcome.attempt for outcome in (*outcomes, *ended)} == {1}


class Chatterer(RolloutAgentLoop):
    """Logs as fast as it can."""

    name = "chatterer"
    events = 20_000

    def get_tools(self, request: Any) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        for number in range(self.events):
            ctx.log_event("chatter", number=number, text="x" * 100)
            if not number % 50:
                await asyncio.sleep(0)
        return ctx.complete([], reward=1.0)


@pytest.mark.long
async def test_a_hundred_slow_readers_delay_no_other_reader(tmp_path):
    """They read one event in a tenth of a second; memory is the log's own, and who reads on misses nothing."""
    readers = 100
    async with (
        AgentServer([Chatterer()], port=0, state_dir=tmp_path / "state") as server,
        Trainer(server.address, CountingPolicy()) as trainer,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        await asyncio.wait_for(trainer.rollout(rollout_id="alone"), 50)
        stub, before = services_pb2_grpc.RolloutServiceStub(channel), resident(["self"])
        running = asyncio.create_task(trainer.rollout(rollout_id="watched"))
        await asyncio.sleep(0.2)  # the stream is cut in the middle
        streams = [stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="watched")) for _ in range(readers)]

        async def dawdle(stream: Any) -> list[int]:
            numbers = []
            while not running.done():
                numbers.append((await stream.read()).event.event_number)
                await asyncio.sleep(0.1)  # calls in a row, not at once
            return numbers

        slow = [asyncio.create_task(dawdle(stream)) for stream in streams]
        assert (await asyncio.wait_for(running, 50)).reward == 1.0
        for numbers in await asyncio.gather(*slow):
            assert numbers == list(range(1, len(numbers) + 1))
        grown = resident(["self"]) - before
        print(f"\n{grown / readers / 1e3:.0f} KB a reader, both ends in this process")
        for stream in streams:
            stream.cancel()
        numbers = [event.event_number async for event in trainer.events("watched")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > Chatterer.events
