"""What a trainer sends to a raw agent server, and what it makes of the answers: Inits, cancels, events."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, message_pb2, rollout_pb2
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, PermissionDenied
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.server_frames import accepted, chat, complete, event, init_reply, status, window
from tests.trainer.deployment import begun


async def test_inits_keep_to_the_servers_window(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(max_open_rollouts=0)
    done = [deployment.run(f"r{n}") for n in range(3)]
    async with deployment.bystander():
        assert server.stream.count("init") == 0
    await server.send(window(2))
    requests = [await server.accept() for _ in range(2)]
    await server.send(window(1))
    await server.complete(requests[0])
    await server.complete(requests[0])
    assert server.stream.count("init") == 2, "one is open"
    await server.complete(requests[1])
    await server.complete(await server.accept())
    await asyncio.gather(*done)


async def test_a_hello_without_a_window_allows_1024_rollouts(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(max_open_rollouts=None)
    done = deployment.run("r")
    await server.complete(await server.accept())
    assert (await done).status == OutcomeStatus.COMPLETED


async def test_a_refused_init_is_raised_or_sent_again(listening):
    deployment = await listening()
    async with deployment.bystander():
        server = await deployment.server()
        await server.attach()
        later, never = deployment.run("later"), deployment.run("never")
        requests = {request.rollout_id: request for request in [await server.stream.next("init") for _ in range(2)]}
        full = status(grpc.StatusCode.RESOURCE_EXHAUSTED)
        full.details.add().Pack(error_details_pb2.RetryInfo(retry_delay={"nanos": 1000}))
        await server.send(
            init_reply(requests["later"], status=full),
            init_reply(requests["never"], status=status(grpc.StatusCode.PERMISSION_DENIED)),
        )
        with pytest.raises(PermissionDenied):
            await never
        await server.complete(await server.accept())
        assert (await later).attempt == 1


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


async def test_a_draining_server_gets_no_inits(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    await server.send(attach_pb2.ServerFrame(draining={}), chat(rollout_pb2.InitRequest(rollout_id="x"), 0))
    await server.stream.next("chat_reply")
    async with deployment.bystander():
        done = deployment.run("r")
    assert server.stream.count("init") == 0
    other = await deployment.server()
    await other.attach(max_open_rollouts=50)
    await other.complete(await other.accept())
    await done


async def test_after_a_break_unanswered_inits_and_cancels_come_again_and_open_rollouts_are_listed(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    opened = deployment.run("opened")
    await server.accept()
    waiting = deployment.run("waiting")
    unanswered = await server.stream.next("init")
    cancelled = begun(deployment.trainer.cancel("opened", reason="enough"))
    ask = await server.stream.next("cancel")
    await server.stream.cut()
    await server.attach()
    refs = (await server.stream.next("open_rollouts")).rollouts
    assert [(ref.rollout_id, ref.attempt) for ref in refs] == [("opened", 1)]
    assert await server.stream.next("init") == unanswered
    assert await server.stream.next("cancel") == ask
    row = {"rollout_id": "opened", "attempt": 1, "disposition": 1}
    await server.send(
        attach_pb2.ServerFrame(unknown_rollouts={}),
        attach_pb2.ServerFrame(cancel_reply={"id": ask.id, "response": {"results": [row]}}),
        accepted(unanswered),
        complete(unanswered),
    )
    assert (await cancelled)[0].disposition == "CANCELLED"
    assert (await waiting).status is OutcomeStatus.COMPLETED
    assert not opened.done()
    await server.complete(rollout_pb2.InitRequest(rollout_id="opened", attempt=1), status=3)
    assert (await opened).status is OutcomeStatus.CANCELLED


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
