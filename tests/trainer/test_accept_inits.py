"""What a trainer sends to a raw agent server, and what it makes of the answers: Inits, cancels, events."""

import asyncio

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, message_pb2
from osmosis_grpc.protocol.errors import Internal, InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.server_frames import accepted, chat, event
from tests.trainer.deployment import begun


async def test_a_hello_without_a_window_allows_1024_rollouts(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(max_open_rollouts=None)
    done = deployment.run("r")
    await server.complete(await server.accept())
    assert (await done).status == OutcomeStatus.COMPLETED


async def test_an_answer_to_an_init_that_cannot_be_read_fails_that_rollout_alone(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    stream = server.stream
    one, two = deployment.run("one"), deployment.run("two")
    requests = [await server.stream.next("init") for _ in range(2)]
    await server.send(accepted(requests[0], message_pb2.Tool(type="function", extra_json="no")), accepted(requests[1]))
    await server.complete(requests[1])
    assert stream.over is None
    assert (await two).rollout_id == "two"
    with pytest.raises(Internal, match="cannot be read"):
        await one


async def test_an_event_that_cannot_be_read_ends_its_subscription_alone(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.accept()
    reading = begun(anext(aiter(deployment.trainer.events("r"))))
    wanted = await server.stream.next("subscribe")
    await server.send(event(wanted.id, 1, "r", logged={"name": "a", "data_json": "no"}))
    await asyncio.wait({reading}, timeout=1)
    assert server.stream.over is None
    with pytest.raises(InvalidArgument):
        reading.result()
    await server.complete(request)
    await done


async def test_events_go_on_after_a_break_without_gaps(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.accept()
    seen: list[int] = []

    async def read() -> None:
        async for told in deployment.trainer.events("r"):
            seen.append(told.event_number)

    reading = begun(read())
    wanted = await server.stream.next("subscribe")
    assert wanted.request.after_event == 0
    await server.send(*(event(wanted.id, n, "r", started={}) for n in (1, 2, 3)), chat(request, 0))
    await server.stream.next("chat_reply")
    await server.stream.cut()
    await server.attach()
    again = await server.stream.next("subscribe")
    assert (again.id, again.request.after_event) == (wanted.id, 3)
    await server.send(
        *(event(wanted.id, n, "r", started={}) for n in (3, 4)), attach_pb2.ServerFrame(unsubscribed={"id": wanted.id})
    )
    await reading
    assert seen == [1, 2, 3, 4]
    await server.complete(request)
    await done
