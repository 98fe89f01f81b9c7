"""Events over an attachment: with tokens or without, in order and without gaps, however slow the reader is."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol.errors import NotFound, OsmosisValidationError, Unavailable
from osmosis_grpc.protocol.types import TrajectoryEvent, events
from osmosis_grpc.protocol.wire.event import event_to_wire
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.trainer.transports.attach import open_requests as subscriptions
from osmosis_grpc.trainer.transports.attach.open_requests import Subscription
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.waiting import until


class Chatty(RolloutAgentLoop):
    """Logs a number so often, then waits for its gate."""

    name = "chatty"

    def __init__(self):
        self.gate = asyncio.Event()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        for number in range(ctx.request.metadata["events"]):
            ctx.log_event("counted", number=number)
        await self.gate.wait()
        return ctx.complete([USER])


async def collect(stream, pause=None, to=None):
    got = []
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            got.append(event)
            if pause is not None:
                await asyncio.sleep(pause)  # a slow reader
            if len(got) == to:
                break
    return got


async def test_the_events_are_those_of_the_server(serve, attach_to):
    server = await serve(talker())
    trainer = await attach_to(reply, server)
    await asyncio.wait_for(trainer.rollout(rollout_id="r1", messages=[USER], metadata={"turns": 3}), PATIENCE)
    whole = await collect(trainer.events("r1", tokens=True))
    async with RolloutClient(server.address) as client:
        told = await collect(client.events("r1"))
    assert [event.event_number for event in whole] == list(range(1, len(whole) + 1))
    assert len(whole) == len(told)
    assert [repr(event) for event in whole] == [repr(event) for event in told]
    assert isinstance(whole[-1].kind, events.Delivered)

    bare = await collect(trainer.events("r1"))
    assert [event.event_number for event in bare] == [event.event_number for event in whole]
    for one, other in zip(bare, whole, strict=True):
        assert type(one.kind) is type(other.kind)
        if isinstance(one.kind, events.ChatAnswered):
            assert other.kind.response.tokens is not None
            assert other.kind.response.prompt_ids is not None
            assert one.kind.response.tokens is None
            assert one.kind.response.message == other.kind.response.message
        else:
            assert repr(one) == repr(other)
    assert sum(isinstance(event.kind, events.ChatAnswered) for event in bare) == 3

    for after in (1, 4, len(whole) - 1):
        assert [e.event_number for e in await collect(trainer.events("r1", after=after))] == list(
            range(after + 1, len(whole) + 1)
        )
    assert await collect(trainer.events("r1", after=len(whole))) == []


@pytest.mark.parametrize(("rollout_id", "error"), [("nobody", NotFound), ("a/b", OsmosisValidationError)])
async def test_events_that_are_not_there(serve, attach_to, rollout_id, error):
    trainer = await attach_to(reply, await serve(talker()), await serve(talker()))
    with pytest.raises(error):
        await collect(trainer.events(rollout_id))


async def test_the_server_that_knows_it_is_found(serve, attach_to):
    agents = [talker(), talker()]
    trainer = await attach_to(reply, *[await serve(agent) for agent in agents])
    names = [f"r{n}" for n in range(6)]
    await asyncio.gather(*(asyncio.wait_for(trainer.rollout(rollout_id=name), PATIENCE) for name in names))
    assert all(agent.started for agent in agents)
    for name in names:
        assert {event.rollout_id for event in await collect(trainer.events(name))} == {name}


@pytest.mark.parametrize("most", [1, 3, 50])
async def test_a_slow_reader_gets_everything_of_what_runs(serve, attach_to, monkeypatch, most):
    monkeypatch.setattr(subscriptions, "MAX_WAITING", most)
    agent = Chatty()
    trainer = await attach_to(reply, await serve(agent))
    running = asyncio.ensure_future(trainer.rollout(rollout_id="r1", metadata={"events": 200}))
    await until(lambda: trainer.servers[0].open)
    got = await collect(trainer.events("r1"), pause=0, to=202)
    assert [event.event_number for event in got] == list(range(1, 203))
    assert [e.kind.data["number"] for e in got if isinstance(e.kind, events.Logged)] == list(range(200))
    agent.gate.set()
    assert (await running).status == "COMPLETED"


# One subscription, by itself


def response(number):
    event = TrajectoryEvent(rollout_id="r", attempt=1, event_number=number, time=0.0, kind=events.Logged("x", {}))
    return control_pb2.StreamEventsResponse(event=event_to_wire(event, tokens=True))


async def test_an_event_out_of_order_is_left_out():
    subscription = Subscription("r", 0, 3, tokens=True)
    assert (subscription.message().request.after_event, subscription.message().tokens) == (3, True)
    for number in (3, 5, 4, 4, 6, 5, 6):
        assert subscription.put(response(number))
    assert subscription.put(control_pb2.StreamEventsResponse(idle=control_pb2.Idle(last_event_number=99)))
    subscription.ended(None)
    assert [e.event_number for e in await collect(subscription.read(lambda _: None))] == [4, 5, 6]


async def test_an_error_comes_after_what_was_there():
    subscription = Subscription("r", 0, 0, tokens=False)
    subscription.put(response(1))
    subscription.ended(Unavailable("gone"))
    got = []
    with pytest.raises(Unavailable, match="gone"):
        async for event in subscription.read(lambda _: None):
            got.append(event.event_number)
    assert got == [1]


async def test_an_event_of_a_newer_kind_leaves_no_gap():
    newer = response(2)
    newer.event.ClearField(newer.event.WhichOneof("kind"))
    subscription = Subscription("r", 0, 0, tokens=False)
    for told in (response(1), newer, response(3)):
        subscription.put(told)
    subscription.ended(None)
    assert [e.event_number for e in await collect(subscription.read(lambda _: None))] == [1, 3]
