"""What ends an attachment and what is answered singly, sent by a raw trainer beside a bystander one."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.rpc import error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
)
from osmosis_grpc.protocol.stream import stream_machine
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.raw import RawTrainer, detail_of, field_of, listen_as_trainer
from osmosis_grpc.testing.raw.stream import TIMEOUT as SOON
from osmosis_grpc.testing.raw.trainer_frames import (
    HEARTBEAT,
    cancel,
    chat_reply,
    init,
    recorded,
    reply,
    subscribe,
    unknown_chat,
    window,
)
from tests.server.attached import Talk, bystander

INVALID, EXHAUSTED, PRECONDITION, NOT_FOUND, UNAVAILABLE = 3, 8, 9, 5, 14
COMPLETED, FAILED = outcome_pb2.OUTCOME_STATUS_COMPLETED, outcome_pb2.OUTCOME_STATUS_FAILED

Sent = Callable[[RawTrainer], Any]


def frames(*listed: Any) -> bytes:
    return services_pb2.AttachRequest(frames=listed).SerializeToString()


def hello(**fields: Any) -> Sent:
    return lambda trainer: frames(trainer.hello(**fields))


NO_HELLO: dict[str, tuple[Sent, str, str]] = {
    "another frame": (lambda _: frames(HEARTBEAT), "INVALID_ARGUMENT", "hello"),
    "an Init": (lambda _: frames(init("too-early")), "INVALID_ARGUMENT", "hello"),
    "a message without frames": (lambda _: b"", "INVALID_ARGUMENT", "hello"),
    "a frame without a kind": (lambda _: frames(attach_pb2.TrainerFrame()), "INVALID_ARGUMENT", "hello"),
    "a frame beside the hello": (lambda t: frames(t.hello(), init("too-early")), "INVALID_ARGUMENT", "hello"),
    "hello after a frame": (lambda t: frames(HEARTBEAT, t.hello()), "INVALID_ARGUMENT", "hello"),
    "two hellos": (lambda t: frames(t.hello(), t.hello()), "INVALID_ARGUMENT", "hello"),
    "no id": (hello(attachment_id=""), "INVALID_ARGUMENT", "hello.attachment_id"),
    "a short id": (hello(attachment_id="a" * 15), "INVALID_ARGUMENT", "hello.attachment_id"),
    "a long id": (hello(attachment_id="a" * 257), "INVALID_ARGUMENT", "hello.attachment_id"),
    "a control character": (hello(attachment_id="a" * 16 + "\n"), "INVALID_ARGUMENT", "hello.attachment_id"),
    "a newer protocol": (hello(protocol_min=2, protocol_max=9), "FAILED_PRECONDITION", ""),
    "an older protocol": (hello(protocol_min=0, protocol_max=0), "FAILED_PRECONDITION", ""),
    "bytes that are no message": (lambda _: b"\xff\xfe\xfd\xfc", "INVALID_ARGUMENT", ""),
    "a message that is cut short": (lambda t: frames(t.hello())[:-3], "INVALID_ARGUMENT", ""),
    "text that is not UTF-8": (lambda t: frames(t.hello()).replace(b"raw 1", b"raw\xff1"), "INVALID_ARGUMENT", ""),
}


@pytest.mark.parametrize("what", NO_HELLO)
async def test_without_a_proper_hello_the_stream_ends_before_anything_is_answered(serve, what):
    server = await serve(Talk())
    send, code, field = NO_HELLO[what]
    async with bystander(server), RawTrainer(server.address) as trainer:
        stream = trainer.open()
        await stream.send_bytes(send(trainer))
        assert await stream.ended() == code, stream.details
        assert not stream.frames
        if code == "INVALID_ARGUMENT":
            assert stream.field() == field
        else:
            violation = detail_of(stream.status, error_details_pb2.PreconditionFailure).violations[0]
            assert (violation.type, violation.subject) == ("PROTOCOL", "1-1")
        await works_again(trainer)


async def test_a_mistake_that_crosses_the_servers_hello_is_reported_to_the_trainer(serve):
    server = await serve(Talk())
    for turns in range(40):  # of the event loop, in which the hello is on its way
        async with RawTrainer(server.address) as trainer:
            stream = trainer.open()
            await stream.send(trainer.hello())
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            await stream.send_bytes(b"\xff")
            assert await stream.ended() == "INVALID_ARGUMENT"
    async with RawTrainer(server.address) as trainer:
        await works_again(trainer)


async def works_again(trainer: RawTrainer) -> None:
    """The same attachment can be had again, and serves."""
    await trainer.attach()
    await trainer.start("afterwards")
    assert (await trainer.finish()).status == COMPLETED
    await trainer.barrier()


async def test_a_trainer_that_says_nothing_is_sent_away(serve, monkeypatch):
    monkeypatch.setattr(stream_machine, "HELLO_TIMEOUT", 0.2)
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = trainer.open()
        assert await stream.ended() == "INVALID_ARGUMENT"
        assert stream.field() == "hello"
        assert "did not come" in stream.details
        monkeypatch.setattr(stream_machine, "HELLO_TIMEOUT", SOON)
        await works_again(trainer)


async def test_a_form_of_histories_that_is_none_is_refused_and_leaves_nothing_behind(serve):
    server = await serve(Talk(), max_concurrent=6, max_queued=0)
    async with bystander(server), RawTrainer(server.address) as trainer:
        stream = trainer.open()
        await stream.send(trainer.hello(history=99))
        assert await stream.ended() == "INVALID_ARGUMENT"
        assert stream.field() == "hello.history"
        async with RawTrainer(server.address) as third:
            assert (await third.attach()).all("hello")[0].max_open_rollouts == 3, "there are two attachments"


def unasked(**fields: Any) -> attach_pb2.TrainerFrame:
    defaults: dict[str, Any] = {"rollout_id": "mine", "attempt": 1, "sample": "main", "chat_number": 2}
    return attach_pb2.TrainerFrame(chat_reply=attach_pb2.ChatReply(**(defaults | fields), response=reply("hm")))


AFTER_HELLO: dict[str, tuple[Sent, str]] = {
    "bytes that are no message": (lambda _: b"\xff\xfe\xfd\xfc", ""),
    "text that is not UTF-8": (lambda _: frames(init("\x01\x02")).replace(b"\x01\x02", b"\xc3\x28"), ""),
    "more than 4,096 frames": (lambda _: frames(*[HEARTBEAT] * 4097), "frames"),
    "a frame without a kind": (lambda _: frames(attach_pb2.TrainerFrame()), "frames.frame"),
    "a second hello": (lambda t: frames(t.hello()), "frames.hello"),
    "the answer to a chat not asked yet": (lambda _: frames(unasked()), "chat_reply"),
    "the answer to a chat 0": (lambda _: frames(unasked(chat_number=0)), "chat_reply"),
    "the answer to a sample that is none": (lambda _: frames(unasked(sample="other", chat_number=1)), "chat_reply"),
    "the answer to an attempt that is none": (lambda _: frames(unasked(attempt=2, chat_number=1)), "chat_reply"),
    "the answer to an unknown rollout": (lambda _: frames(unasked(rollout_id="nobody's")), "chat_reply"),
}


@pytest.mark.parametrize("what", AFTER_HELLO)
async def test_a_mistake_that_ends_an_attachment_names_itself_and_harms_no_rollout(serve, what):
    server = await serve(Talk())
    send, field = AFTER_HELLO[what]
    async with bystander(server), RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("mine", turns=2)
        asked = await trainer.chat()
        await stream.send_bytes(send(trainer))
        assert await stream.ended() == "INVALID_ARGUMENT", stream.details
        assert stream.field() == field
        await trainer.attach()
        again = await trainer.chat()
        assert again == asked
        await trainer.answer(again)
        assert (await trainer.finish()).status == COMPLETED


async def test_an_init_that_crossed_a_lowering_is_answered_singly(serve):
    server = await serve(Talk(), max_concurrent=2, max_queued=0)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        assert stream.all("hello")[0].max_open_rollouts == 2
        await trainer.start("bystander-too")
        async with bystander(server):
            assert (await stream.next("window")).max_open_rollouts == 1
            await trainer.send(init("crossed"))
            refused = await stream.next("init_reply")
            assert (refused.rollout_id, refused.status.code) == ("crossed", EXHAUSTED)
            assert detail_of(refused.status, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
            await trainer.send(init("bystander-too"))
            assert not (await stream.next("init_reply")).response.created, "what is open already is beyond nothing"
        assert (await stream.next("window")).max_open_rollouts == 2
        assert (await trainer.finish()).rollout_id == "bystander-too"
        assert stream.over is None


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"rollout_id": ""}, "rollout_id"),
    "an id that is a path": ({"rollout_id": "../etc"}, "rollout_id"),
    "a callback": ({"callback": rollout_pb2.Callback(target="127.0.0.1:1")}, "callback"),
    "an empty callback": ({"callback": rollout_pb2.Callback()}, "callback"),
    "metadata that is no object": ({"spec": {"metadata_json": "[1]"}}, "spec.metadata_json"),
    "metadata that is not JSON": ({"spec": {"metadata_json": "{"}}, "spec.metadata_json"),
    "much metadata": ({"spec": {"metadata_json": '{"a": "' + "a" * 2000 + '"}'}}, "spec.metadata_json"),
    "sampling that is not JSON": ({"spec": {"sampling": {"extra_json": "no"}}}, "spec.sampling.extra_json"),
    "a message that is not JSON": (
        {"spec": {"messages": [message_pb2.Message(role="user", extra_json="no")]}},
        "spec.messages[0].extra_json",
    ),
    "a group that is too small": ({"spec": {"group": {"id": "g", "index": 3, "size": 2}}}, "spec.group.index"),
    "no time at all": ({"spec": {"agent_timeout": {"seconds": 0}}}, "spec.agent_timeout"),
    "a trace with a line break": (
        {"trace_context": rollout_pb2.TraceContext(traceparent="a\nb")},
        "trace_context.traceparent",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_init_is_answered_singly_naming_the_field(serve, what):
    fields, field = MALFORMED[what]
    server = await serve(Talk(), max_metadata_bytes=1000)
    async with bystander(server), RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        rollout_id = fields.get("rollout_id", "bad")
        spec = {"agent_loop": "talk", "metadata_json": '{"turns": 1}'} | fields.get("spec", {})
        request = rollout_pb2.InitRequest(**(fields | {"rollout_id": rollout_id, "spec": spec}))
        await trainer.send(attach_pb2.TrainerFrame(init=request), init("good"))
        refused = await stream.next("init_reply")
        assert (refused.rollout_id, refused.attempt) == (rollout_id, 1)
        assert (refused.status.code, field_of(refused.status)) == (INVALID, field)
        assert (await trainer.finish()).rollout_id == "good"


async def test_what_answers_nothing_is_ignored(serve):
    server = await serve(Talk())
    async with bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        outcome = outcome_pb2.RolloutOutcome(rollout_id="unknown", attempt=1, result_id="unknown")
        await trainer.send(recorded(outcome), attach_pb2.TrainerFrame(unsubscribe={"id": "unknown"}))
        await works_again(trainer)


async def test_an_unknown_chat_answered_to_a_full_history_is_an_error_of_that_chat(serve):
    server = await serve(Talk())
    async with bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        await trainer.send(chat_reply(chat, status=unknown_chat(chat)))
        outcome = await trainer.settled()
        assert (outcome.status, outcome.failure.boundary) == (FAILED, outcome_pb2.FAILURE_BOUNDARY_TRAINER)
        assert trainer.stream.count("chat") == 1


BAD_REPLIES: dict[str, dict[str, Any]] = {
    "no message": {"response": chat_pb2.ChatResponse()},
    "no JSON": {"response": chat_pb2.ChatResponse(message=message_pb2.Message(role="assistant", extra_json="no"))},
    "lengths that differ": {
        "response": chat_pb2.ChatResponse(
            message=message_pb2.Message(role="assistant", text="a"), tokens={"ids": [1, 2], "logprobs": [-1.0]}
        )
    },
    "a prefix of nothing": {
        "response": chat_pb2.ChatResponse(
            message=message_pb2.Message(role="assistant", text="a"),
            tokens={"ids": [1]},
            prompt={"ids": [1]},
            prompt_prefix=7,
        )
    },
    "neither reply nor status": {},
    "a refusal": {"status": error_pb2.Status(code=7, message="no")},
    "a status that is none": {"status": error_pb2.Status(code=99, message="no")},
}


@pytest.mark.parametrize("what", BAD_REPLIES)
async def test_a_bad_answer_to_a_chat_fails_that_rollout_and_no_other(serve, what):
    server = await serve(Talk())
    async with bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.send(chat_reply(await trainer.chat(), **BAD_REPLIES[what]))
        outcome = await trainer.settled()
        assert (outcome.status, outcome.failure.boundary) == (FAILED, outcome_pb2.FAILURE_BOUNDARY_TRAINER)
        assert not outcome.HasField("reward")
        await works_again(trainer)


async def test_the_answer_to_an_ended_chat_is_dropped_and_counted(serve):
    server = await serve(Talk())
    async with bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        await trainer.send(cancel("c", rollout_id="r"))
        assert (await trainer.settled()).status == outcome_pb2.OUTCOME_STATUS_CANCELLED
        await trainer.answer(chat)
        await trainer.answer(chat)
        await trainer.barrier()
        assert server.attachments.get(trainer.attachment_id).dropped == 2


async def test_a_chat_answered_twice_takes_the_first_answer(serve):
    server = await serve(Talk())
    async with bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        chat = await trainer.chat()
        await trainer.send(chat_reply(chat, response=reply("one")), chat_reply(chat, response=reply("two")))
        second = await trainer.chat()
        assert second.delta.parent_chat == 1
        await trainer.send(chat_reply(second, status=unknown_chat(second)))
        assert [m.text for m in (await trainer.chat()).full.messages][1] == "one"
        assert server.attachments.get(trainer.attachment_id).dropped == 1


async def test_an_attachment_cannot_answer_the_chats_of_another_one(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, bystander(server) as other:
        await trainer.attach()
        asked = other.stream.all("chat")[0]
        await trainer.send(chat_reply(asked, response=reply("not from me")))
        await trainer.barrier()
        await other.barrier()
        assert other.stream.count("chat") == 1, "it still waits for its own trainer"


async def test_another_owners_stream_is_refused_and_the_first_stays(stack):
    async with listen_as_trainer() as listener:
        server = await stack.enter_async_context(AgentServer([Talk()], port=0, connect=[listener.address]))
        dialled = await listener.accept()
        assert (await dialled.next("hello")).attachment_id == "", "the server speaks first"
        async with RawTrainer(server.address) as other, RawTrainer(server.address) as trainer:
            await dialled.send(trainer.hello(), init("first"))
            chat = await dialled.next("chat")
            stream = trainer.open()
            await stream.send(trainer.hello())
            assert await stream.ended() == "UNAUTHENTICATED"
            assert not stream.frames
            await other.attach()
            await other.send(init("first"), cancel("c", rollout_id="first"), subscribe("s", "first"))
            assert (await other.stream.next("init_reply")).status.code == 6, "ALREADY_EXISTS for other owners"
            row = (await other.stream.next("cancel_reply")).response.results[0]
            assert row.disposition == control_pb2.CANCEL_DISPOSITION_UNKNOWN
            assert (await other.stream.next("unsubscribed")).status.code == NOT_FOUND
            await dialled.send(chat_reply(chat, response=reply("fine")))
            outcome = (await dialled.next("complete")).outcome
            assert outcome.status == COMPLETED
            await dialled.send(recorded(outcome), window(1))


async def test_somebody_elses_answer_to_my_chat_is_to_a_chat_never_asked(stack):
    async with listen_as_trainer() as listener:
        server = await stack.enter_async_context(AgentServer([Talk()], port=0, connect=[listener.address]))
        dialled = await listener.accept()
        async with RawTrainer(server.address) as trainer:
            await dialled.send(trainer.hello(attachment_id="the dialled one's"), init("first"))
            chat = await dialled.next("chat")
            stream = await trainer.attach()
            await trainer.send(chat_reply(chat, response=reply("not from me")))
            assert await stream.ended() == "INVALID_ARGUMENT"
            await dialled.send(chat_reply(chat, response=reply("fine")))
            assert (await dialled.next("complete")).outcome.samples[0].prefix_chat == 1
