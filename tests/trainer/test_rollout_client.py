"""RolloutClient against a real server."""

import asyncio

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies import EchoPolicy, ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.protocol.errors import AlreadyExists, DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from osmosis_grpc.protocol.types import Group, OutcomeStatus, RolloutState, events
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.waiting import ended, until

QUESTION = [{"role": "user", "content": "What is (2 + 3) * 4?"}]


class Sleeper(RolloutAgentLoop):
    """Runs until it is cancelled."""

    name = "sleeper"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await asyncio.sleep(3600)


@pytest.fixture
async def pair(serve, train, stack):
    """A client and a trainer for a server that hosts two agent loops."""
    server = await serve(CalculatorAgent(), Sleeper(), idle_interval=0.1)
    trainer = await train(ToolCallingMock())
    client = await stack.enter_async_context(RolloutClient(server.address))
    client.server = server
    return client, trainer


async def test_init_wait_events(pair):
    client, trainer = pair
    started = await client.init(
        rollout_id="r", agent_loop="calculator", messages=QUESTION, label="20", callback=trainer.callback()
    )
    assert started.created
    assert not (
        await client.init(
            rollout_id="r", agent_loop="calculator", messages=QUESTION, label="20", callback=trainer.callback()
        )
    ).created
    waited = await ended(client, "r")
    received = await trainer.outcome("r")
    assert waited.status is received.status is OutcomeStatus.COMPLETED
    assert waited.reward == received.reward == 1.0
    assert waited.messages == received.messages
    assert waited.samples["main"].segments == received.samples["main"].segments
    assert waited.metrics == received.metrics
    seen = [event async for event in client.events("r")]
    assert [event.event_number for event in seen] == list(range(1, len(seen) + 1))
    assert isinstance(seen[-1].kind, events.Delivered)
    assert [event.event_number async for event in client.events("r", after=4)] == list(range(5, len(seen) + 1))


async def test_events_of_an_unknown_rollout(pair):
    with pytest.raises(NotFound):
        await anext(pair[0].events("nobody"))


async def test_events_without_a_server():
    async with RolloutClient("127.0.0.1:1", timeout=1, lost_after=0.5) as client:
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await asyncio.wait_for(anext(client.events("r")), 30)


async def test_cancel_get_and_list(pair):
    client, trainer = pair
    for i in range(3):
        await client.init(rollout_id=f"s{i}", agent_loop="sleeper", callback=trainer.callback(), group=Group("g", i, 3))
    info = await client.get("s1")
    assert (info.state, info.agent_loop, info.activity.description) == (RolloutState.RUNNING, "sleeper", "agent")
    assert info.group == Group("g", 1, 3)
    assert [row.rollout_id async for row in client.rollouts(group_id="g")] == ["s0", "s1", "s2"]
    (row,) = await client.cancel("s0", reason="enough")
    assert row.disposition == "CANCELLED"
    assert await client.cancel(prefix="t") == []
    rows = await client.cancel(group_id="g")
    assert {row.rollout_id for row in rows} >= {"s1", "s2"}
    with pytest.raises(InvalidArgument, match="a prefix, or everything=True"):
        await client.cancel("s0", prefix="s")
    for i in range(3):
        outcome = await asyncio.wait_for(ended(client, f"s{i}"), 10)
        assert outcome.status is OutcomeStatus.CANCELLED
        assert outcome.failure is None
    (row,) = await client.cancel("s0")
    assert (row.disposition, row.state) == ("ALREADY_ENDED", RolloutState.CANCELLED)
    (row,) = await client.cancel("unknown")
    assert (row.disposition, row.state) == ("UNKNOWN", None)
    reasons = [e.kind.reason async for e in client.events("s0") if isinstance(e.kind, events.CancelAsked)]
    assert reasons == ["enough"]


async def test_server_info_and_drain(refused_at_once, pair):
    client, trainer = pair
    info = await client.info()
    assert [loop.name for loop in info.agent_loops] == ["calculator", "sleeper"]
    assert [tool["function"]["name"] for tool in info.agent_loops[0].tools] == ["add", "subtract", "multiply", "divide"]
    assert (info.protocol_min, info.protocol_max) == (1, 1)
    assert info.limits.max_message_bytes == 64 * 2**20
    await client.init(rollout_id="s", agent_loop="sleeper", callback=trainer.callback())
    left = await client.drain()
    assert (left.running, left.queued) == (1, 0)
    assert (await client.info()).draining
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(client.init(rollout_id="t", agent_loop="sleeper", callback=trainer.callback()), 60)
    assert caught.value.retry_after == 5.0


async def test_a_stream_that_is_left_leaves_nothing_behind(pair):
    client, trainer = pair
    await client.init(rollout_id="s", agent_loop="sleeper", callback=trainer.callback())
    record = client.server.engine.rollouts.get("", "s")
    log = client.server.engine.log
    async with grpc.aio.insecure_channel(client.target) as channel:
        stub = RolloutServiceStub(channel)
        stream = stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="s"))
        everything = stub.StreamEvents(control_pb2.StreamEventsRequest())
        await stream.read()
        await everything.read()
        assert len(record.trail.waiters) == len(log.waiters) == 1
        stream.cancel()
        everything.cancel()
        await until(lambda: not record.trail.waiters and not log.waiters)


async def test_messages_are_checked_before_they_travel(pair):
    client, trainer = pair
    with pytest.raises(InvalidArgument, match=r"messages\[0\].content"):
        await client.init(rollout_id="x", messages=[{"role": "user", "content": "\ud800"}], callback=trainer.callback())
    with pytest.raises(InvalidArgument, match="label: is a int"):
        await client.init(rollout_id="x", label=45, callback=trainer.callback())
    with pytest.raises(TypeError, match=r"use trainer.callback\(\)"):
        await client.init(rollout_id="x", callback=trainer)
    with pytest.raises(TypeError, match="fields by name"):
        await client.init("x", callback=trainer.callback())
    with pytest.raises(ValueError, match="HOST:PORT"):
        RolloutClient("http://127.0.0.1:50051")
    with pytest.raises(RuntimeError, match="async with"):
        CallbackTrainer(EchoPolicy()).callback()
    with pytest.raises(TypeError, match="no field colour"):
        await client.init(rollout_id="x", colour="red")


async def test_a_trainer_that_comes_back_elsewhere_is_found_by_an_equal_init(serve, train, stack):
    server = await serve(outbox_delay=(0.05, 0.1))
    client = await stack.enter_async_context(RolloutClient(server.address))
    request = {"rollout_id": "r", "messages": QUESTION, "label": "20"}
    hold = asyncio.Event()

    async def slow(chat, /):
        await hold.wait()
        raise AssertionError("the chat was asked elsewhere")

    first = await train(slow)
    await client.init(**request, callback=first.callback())
    second = await train(ToolCallingMock())
    assert not (await client.init(**request, callback=second.callback())).created
    assert (await asyncio.wait_for(second.outcome("r"), 10)).reward == 1.0
    with pytest.raises(AlreadyExists):
        await client.init(**(request | {"label": "21"}), callback=second.callback())


async def test_an_outcome_waits_for_its_trainer(serve, train, stack):
    server = await serve(outbox_delay=(0.05, 0.1))
    client = await stack.enter_async_context(RolloutClient(server.address))
    port = quiet_port()
    async with CallbackTrainer(EchoPolicy(), port=port, tokens="the same in both") as trainer:
        await client.init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
        assert [event async for event in client.events("r")], "to its end: it is delivered"
    await client.init(rollout_id="c", messages=QUESTION, callback=trainer.callback())
    await client.cancel("c")
    assert (await ended(client, "c")).status is OutcomeStatus.CANCELLED
    assert [row.rollout_id async for row in client.rollouts(undelivered=True)] == ["c"]
    again = await train(EchoPolicy(), port=port, tokens="the same in both")
    assert (await asyncio.wait_for(again.outcome("c"), 30)).status is OutcomeStatus.CANCELLED
