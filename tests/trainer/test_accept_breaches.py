"""What a trainer does with agent servers that keep to no rules: no hello, wrong frames, silence."""

import asyncio
from typing import Any

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2
from osmosis_grpc.protocol.stream import stream_machine
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw import listen_as_agent_server
from osmosis_grpc.testing.raw.server_frames import HEARTBEAT, accepted, chat, complete, hello, referring
from tests.trainer.deployment import frames, within


async def test_a_mistake_that_crosses_the_trainers_hello_is_reported_to_the_server(listening):
    deployment = await listening()
    for turns in range(12):  # of the event loop, in which the hello is on its way
        server = await deployment.server()
        stream = server.open()
        await stream.send(server.hello())
        for _ in range(turns % 4):
            await asyncio.sleep(0)
        await stream.send_bytes(b"\xff")
        assert await stream.ended() == "INVALID_ARGUMENT"


async def test_a_server_that_says_nothing_is_sent_away(listening, monkeypatch):
    monkeypatch.setattr(stream_machine, "HELLO_TIMEOUT", 0.2)
    deployment = await listening()
    server = await deployment.server()
    stream = server.open()
    assert await stream.ended() == "INVALID_ARGUMENT"
    assert "did not come" in stream.details


AFTER_HELLO: dict[str, tuple[Any, str]] = {
    "bytes that are no message": (lambda _: b"\xff\xfe\xfd\xfc", ""),
    "a second hello": (lambda s: frames(s.hello()), "frames.hello"),
}


@pytest.mark.parametrize("what", AFTER_HELLO)
async def test_a_mistake_that_ends_an_attachment_names_itself_and_loses_no_rollout(listening, what, policy):
    deployment = await listening()
    send, field = AFTER_HELLO[what]
    async with deployment.bystander():
        server = await deployment.server()
        before = await server.attach()
        done = deployment.run("r")
        request = await server.accept()
        await server.ask(request)
        await server.stream.send_bytes(send(server))
        assert await server.stream.ended() == "INVALID_ARGUMENT", server.stream.details
        assert server.stream.field() == field
        again = await server.attach()
        assert (again.attachment_id, again.journal_id) == (before.attachment_id, server.journal_id)
        refs = (await server.stream.next("open_rollouts")).rollouts
        assert [(ref.rollout_id, ref.attempt) for ref in refs] == [("r", 1)]
        await server.complete(request, **referring(1, runs=(1, 2)))
        assert (await done).attempt == 1
    assert sorted(policy.asked) == [("bystander", 1, "main", 1), ("r", 1, "main", 1)]


# Servers that the trainer dials.


DIALLED: dict[str, Any] = {
    "no hello": lambda: services_pb2.AttachResponse(frames=[HEARTBEAT]),
    "a newer protocol": lambda: services_pb2.AttachResponse(frames=[hello(protocol_min=2, protocol_max=2)]),
}


@pytest.mark.parametrize("what", DIALLED)
async def test_a_dialled_server_that_breaks_the_rules_is_left_and_dialled_again(listening, what):
    async with listen_as_agent_server() as servers:
        deployment = await listening(servers.address)
        async with deployment.bystander():
            stream = await within(servers.accept())
            greeting = await stream.next("hello")
            assert stream.count("hello") == len(stream.frames), "nothing comes before both hellos"
            await stream.send_bytes(DIALLED[what]().SerializeToString())
            async with asyncio.timeout(1):
                await stream.ended()
            again = await within(servers.accept())
            assert (await again.next("hello")).attachment_id == greeting.attachment_id
            await again.send(hello(), chat(rollout_pb2.InitRequest(rollout_id="x"), 0))
            await again.next("chat_reply")
            done = deployment.run("r")
            request = await again.next("init")
            await again.send(accepted(request), complete(request))
            assert (await done).status is OutcomeStatus.COMPLETED


async def test_a_silent_dialled_server_is_left_and_dialled_again(listening, monkeypatch):
    monkeypatch.setattr(stream_machine, "HELLO_TIMEOUT", 0.2)
    async with listen_as_agent_server() as servers:
        await listening(servers.address)
        stream = await within(servers.accept())
        await stream.ended()
        await within(servers.accept())
