"""What a trainer does with the chats that a raw agent server asks: windows, bad ones, the same one again."""

from typing import Any

import pytest
from google.rpc import error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2, message_pb2
from osmosis_grpc.testing.raw import detail_of, field_of
from osmosis_grpc.testing.raw.server_frames import chat, delta
from tests.trainer.deployment import CODE


async def test_a_chat_that_crossed_a_lowering_is_answered_singly(listening, policy):
    deployment = await listening(max_open_chats=2)
    server = await deployment.server()
    assert (await server.attach()).max_open_chats == 2
    done = deployment.run("r")
    request = await server.accept()
    async with deployment.bystander() as other:
        assert other.stream.all("hello")[0].max_open_chats == 1
        assert (await server.stream.next("window")).max_open_chats == 1
        policy.may.clear()
        await server.send(chat(request, 1), chat(request, 2))
        refused = await server.stream.next("chat_reply")
        assert (refused.chat_number, refused.status.code) == (2, CODE["RESOURCE_EXHAUSTED"])
        assert detail_of(refused.status, error_details_pb2.RetryInfo) is not None
        policy.may.set()
        assert (await server.stream.next("chat_reply")).response.message.text == "fine"
        assert (await server.ask(request, 2)).response.message.text == "fine"
    await other.stream.cut()
    assert (await server.stream.next("window")).max_open_chats == 2
    await server.complete(request)
    await done


async def test_a_trainer_that_pauses_says_so_and_resumes(listening):
    deployment = await listening(max_open_chats=6)
    server = await deployment.server()
    await server.attach()
    deployment.trainer.pause()
    assert (await server.stream.next("window")).max_open_chats == 0
    await server.stream.cut()
    assert (await server.attach()).max_open_chats == 0
    deployment.trainer.resume()
    assert (await server.stream.next("window")).max_open_chats == 6


BAD_CHATS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no history": ({"full": None}, "INVALID_ARGUMENT", "history"),
    "no JSON": (
        {"full": {"messages": [message_pb2.Message(role="user", extra_json="no")]}},
        "INVALID_ARGUMENT",
        "full.messages[0].extra_json",
    ),
    "a delta on an unknown chat": ({"chat_number": 2, "delta": delta(7, "a")}, "FAILED_PRECONDITION", ""),
    "another body": ({"full": {"messages": [message_pb2.Message(role="user", text="no")]}}, "ALREADY_EXISTS", ""),
}


@pytest.mark.parametrize("what", BAD_CHATS)
async def test_a_bad_chat_is_answered_singly_and_never_sampled(listening, policy, what):
    deployment = await listening()
    fields, code, field = BAD_CHATS[what]
    async with deployment.bystander():
        server = await deployment.server()
        await server.attach()
        done = deployment.run("r")
        request = await server.accept()
        await server.ask(request)
        asked = len(policy.asked)
        refused = await server.ask(request, **fields)
        assert (refused.status.code, refused.WhichOneof("result")) == (CODE[code], "status")
        assert refused.chat_number == fields.get("chat_number", 1)
        if code == "INVALID_ARGUMENT":
            assert field_of(refused.status) == field
        elif code == "FAILED_PRECONDITION":
            assert detail_of(refused.status, error_pb2.UnknownChat).chat_number == fields["delta"].parent_chat
        assert len(policy.asked) == asked
        again = await server.ask(request, 2, delta=delta(1, "and?"))
        assert again.response.message.text == "fine"
        await server.complete(request)
        await done


async def test_a_full_history_after_an_unknown_delta_is_answered_with_the_whole_prompt(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.accept()
    first = (await server.ask(request)).response
    assert (await server.ask(request, 2, delta=delta(9, "and?"))).status.code == CODE["FAILED_PRECONDITION"]
    history = [*request.spec.messages, first.message, message_pb2.Message(role="user", text="and?")]
    second = (await server.ask(request, 2, full={"messages": history})).response
    assert second.prompt_prefix == 0
    assert list(second.prompt.ids[: len(first.prompt.ids) + 2]) == [*first.prompt.ids, *first.tokens.ids]
    again = (await server.ask(request, 2, delta=delta(1, "and?"))).response
    assert list(again.tokens.ids) == list(second.tokens.ids), "the same chat in another form has the same reply"
    assert again.prompt_prefix == len(first.prompt.ids) + 2
    await server.complete(request)
    await done
