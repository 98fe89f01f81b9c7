"""What a trainer does with agent servers that dial in, or are dialled, and keep to no rules."""

import asyncio
import functools
import importlib
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2, error_pb2, message_pb2, rollout_pb2, services_pb2
from osmosis_grpc._gen.osmosis.rollout.v1 import trainer_pb2 as pb
from osmosis_grpc.errors import Internal, InvalidArgument, PermissionDenied, Unavailable
from osmosis_grpc.link import stream as link_stream
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import attach
from osmosis_grpc.types import CompletionStatus
from tests.server.raw_trainer import SOON, Talk, details, field_of
from tests.trainer.raw_agent_server import (
    HEARTBEAT,
    RawAgentServer,
    accepted,
    chat,
    complete,
    delta,
    event,
    hello,
    host,
    init_reply,
    referring,
    status,
    window,
)

CODE = {code.name: code.value[0] for code in grpc.StatusCode}
QUESTION = [{"role": "user", "content": "How are you?"}]


class Policy:
    """Says fine, once it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, int]] = []
        self.may = asyncio.Event()
        self.may.set()

    async def __call__(self, request: Any) -> Any:
        self.asked.append((request.rollout_id, request.attempt, request.sample, request.number))
        await self.may.wait()
        return answer(request, "fine", tokens=2)


@pytest.fixture
async def policy():
    return Policy()


@pytest.fixture
def listening(policy, stack):
    """Starts a trainer that agent servers dial; gives raw ones and rollouts."""

    async def start(*targets: str, **options: Any) -> "House":
        trainer = attach(targets, policy, listen_on="127.0.0.1:0", **options)
        await stack.enter_async_context(trainer)
        return House(trainer, stack)

    return start


class House:
    """A trainer with raw agent servers."""

    def __init__(self, trainer: Any, stack: Any) -> None:
        self.trainer = trainer
        self._stack = stack

    async def server(self) -> RawAgentServer:
        return await self._stack.enter_async_context(RawAgentServer(self.trainer.address))

    def run(self, rollout_id: str, **fields: Any) -> "asyncio.Task[Any]":
        """A rollout that somebody waits for."""
        request = {"agent_loop": "talk", "messages": QUESTION} | fields
        return begun(self.trainer.rollout(rollout_id=rollout_id, **request))

    @asynccontextmanager
    async def innocent(self):
        """Another server with a rollout in progress, which goes on and completes afterwards, on the same stream."""
        server = await self.server()
        await server.attach(agent_loops=["innocent"])
        stream = server.stream
        done = self.run("innocent", agent_loop="innocent")
        request = await server.accept()
        yield server
        assert (await server.ask(request)).response.message.text == "fine"
        await server.complete(request, **referring(1, runs=(1, 2)))
        assert (await done).status is CompletionStatus.COMPLETED
        assert stream.over is None


def begun(work: Any) -> "asyncio.Task[Any]":
    """A task of work that is soon over. A test that failed before need not look at it."""
    task = asyncio.create_task(within(work))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def within(work: Any) -> Any:
    async with asyncio.timeout(SOON):
        return await work


def frames(*listed: Any) -> bytes:
    return services_pb2.AcceptRequest(frames=listed).SerializeToString()


async def test_a_whole_rollout(listening, policy):
    house = await listening()
    server = await house.server()
    greeting = await server.attach()
    assert 16 <= len(greeting.attachment_id) <= 256
    assert (greeting.journal_id, greeting.protocol_min, greeting.protocol_max) == ("", 1, 1)
    assert greeting.max_open_chats == 16_384
    assert server.stream.frames[0].WhichOneof("frame") == "hello"
    done = house.run("r", metadata={"n": 1}, label="5")
    request = await server.accept()
    assert (request.rollout_id, request.attempt, request.metadata_json, request.label) == ("r", 1, '{"n":1}', "5")
    assert not request.HasField("callback")
    first = await server.ask(request)
    assert (len(first.response.tokens.ids), first.response.prompt_prefix) == (2, 0)
    second = await server.ask(request, 2, delta=delta(1, "and now?"))
    assert second.response.prompt_prefix == len(first.response.prompt.ids) + 2, "it counts from the chat it continues"
    runs = (len(first.response.prompt.ids), 2, len(second.response.prompt.ids), 2)
    told = await server.complete(request, **referring(1, 2, runs=runs), reward=0.5)
    assert (told.result_id, told.outcome) == ("result of r", pb.COMPLETE_OUTCOME_RECORDED)
    completion = await done
    assert [m["content"] for m in completion.messages] == ["How are you?", "fine", "and now?", "fine"]
    sample = completion.samples["main"]
    assert (sample.trainable, sample.not_trainable_reason) == (True, "")
    assert sample.segments[0].sampled == 4
    assert len(policy.asked) == 2


NO_HELLO: dict[str, tuple[Any, str, str]] = {
    "another frame": (lambda _: frames(HEARTBEAT), "INVALID_ARGUMENT", "hello"),
    "a message without frames": (lambda _: b"", "INVALID_ARGUMENT", "hello"),
    "a frame without a kind": (lambda _: frames(attach_pb2.ServerFrame()), "INVALID_ARGUMENT", "hello"),
    "a frame beside the hello": (lambda s: frames(s.hello(), HEARTBEAT), "INVALID_ARGUMENT", "hello"),
    "two hellos": (lambda s: frames(s.hello(), s.hello()), "INVALID_ARGUMENT", "hello"),
    "bytes that are no message": (lambda _: b"\xff\xfe\xfd\xfc", "INVALID_ARGUMENT", ""),
    "a newer protocol": (lambda s: frames(s.hello(protocol_min=2, protocol_max=3)), "FAILED_PRECONDITION", ""),
    "an older protocol": (lambda s: frames(s.hello(protocol_min=0, protocol_max=0)), "FAILED_PRECONDITION", ""),
}


@pytest.mark.parametrize("what", NO_HELLO)
async def test_without_a_proper_hello_the_stream_ends_before_anything_is_answered(listening, what):
    house = await listening()
    send, code, field = NO_HELLO[what]
    async with house.innocent():
        server = await house.server()
        stream = server.open()
        await stream.send_bytes(send(server))
        assert await stream.ended() == code, stream.details
        assert not stream.frames
        if code == "INVALID_ARGUMENT":
            assert stream.field() == field
        assert len(house.trainer.servers) == 1, "it is no server of the trainer's"


async def test_a_server_that_says_nothing_is_sent_away(listening, monkeypatch):
    monkeypatch.setattr(link_stream, "HELLO_LIMIT", 0.2)
    house = await listening()
    server = await house.server()
    stream = server.open()
    assert await stream.ended() == "INVALID_ARGUMENT"
    assert "did not come" in stream.details


AFTER_HELLO: dict[str, tuple[Any, str]] = {
    "bytes that are no message": (lambda _: b"\xff\xfe\xfd\xfc", ""),
    "more than 4,096 frames": (lambda _: frames(*[HEARTBEAT] * 4097), "frames"),
    "a frame without a kind": (lambda _: frames(attach_pb2.ServerFrame()), "frames.frame"),
    "a frame of an unknown kind": (lambda _: bytes([10, 3, 0xFA, 0x01, 0]), "frames.frame"),
    "a second hello": (lambda s: frames(s.hello()), "frames.hello"),
}


@pytest.mark.parametrize("what", AFTER_HELLO)
async def test_a_mistake_that_ends_an_attachment_names_itself_and_loses_no_rollout(listening, what, policy):
    house = await listening()
    send, field = AFTER_HELLO[what]
    async with house.innocent():
        server = await house.server()
        before = await server.attach()
        done = house.run("r")
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
    assert sorted(policy.asked) == [("innocent", 1, "main", 1), ("r", 1, "main", 1)]


async def test_a_chat_beyond_every_window_ends_the_attachment(listening, policy):
    house = await listening(max_open_chats=4)
    async with house.innocent():
        server = await house.server()
        assert (await server.attach()).max_open_chats == 2
        done = house.run("r")
        request = await server.accept()
        policy.may.clear()
        for number in (1, 2, 3):
            await server.send(chat(request, number))
        assert await server.stream.ended() == "RESOURCE_EXHAUSTED"
        assert details(server.stream.status, error_details_pb2.RetryInfo) is not None
        await server.attach()
        policy.may.set()
        assert {(await server.ask(request, number)).number for number in (1, 2)} == {1, 2}
        await server.complete(request)
        assert (await done).status is CompletionStatus.COMPLETED
    assert len(policy.asked) == 3, "what was asked before the breach was sampled once; what was beyond never"


async def test_a_chat_that_crossed_a_lowering_is_answered_singly(listening, policy):
    house = await listening(max_open_chats=2)
    server = await house.server()
    assert (await server.attach()).max_open_chats == 2
    done = house.run("r")
    request = await server.accept()
    async with house.innocent() as other:
        assert other.stream.all("hello")[0].max_open_chats == 1
        assert (await server.stream.next("window")).max_open_chats == 1
        policy.may.clear()
        await server.send(chat(request, 1), chat(request, 2))
        refused = await server.stream.next("chat_reply")
        assert (refused.number, refused.status.code) == (2, CODE["RESOURCE_EXHAUSTED"])
        assert details(refused.status, error_details_pb2.RetryInfo) is not None
        policy.may.set()
        assert (await server.stream.next("chat_reply")).response.message.text == "fine"
        assert (await server.ask(request, 2)).response.message.text == "fine"
    await other.stream.cut()
    assert (await server.stream.next("window")).max_open_chats == 2
    await server.complete(request)
    await done


async def test_a_trainer_that_pauses_says_so_and_resumes(listening):
    house = await listening(max_open_chats=6)
    server = await house.server()
    await server.attach()
    house.trainer.pause()
    assert (await server.stream.next("window")).max_open_chats == 0
    await server.stream.cut()
    assert (await server.attach()).max_open_chats == 0
    house.trainer.resume()
    assert (await server.stream.next("window")).max_open_chats == 6


BAD_CHATS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no history": ({"full": None}, "INVALID_ARGUMENT", "history"),
    "number 0": ({"number": 0}, "INVALID_ARGUMENT", "number"),
    "a delta on chat 0": ({"delta": delta(0, "a")}, "INVALID_ARGUMENT", "delta.continues"),
    "no rollout": ({"rollout_id": ""}, "INVALID_ARGUMENT", "rollout_id"),
    "no sample": ({"sample": ""}, "INVALID_ARGUMENT", "sample"),
    "a purpose that is none": ({"purpose": 9}, "INVALID_ARGUMENT", "purpose"),
    "no JSON": ({"full": {"messages": [message_pb2.Message(role="user", extra_json="no")]}}, "INVALID_ARGUMENT",
                "full.messages[0].extra_json"),
    "sampling that is no JSON": ({"sampling": message_pb2.SamplingParams(extra_json="[]")}, "INVALID_ARGUMENT",
                                 "sampling.extra_json"),
    "a delta on an unknown chat": ({"number": 2, "delta": delta(7, "a")}, "FAILED_PRECONDITION", ""),
    "a delta on the future": ({"number": 2, "delta": delta(2, "a")}, "FAILED_PRECONDITION", ""),
    "another body": ({"full": {"messages": [message_pb2.Message(role="user", text="no")]}}, "ALREADY_EXISTS", ""),
    "other tools": ({"tools": {"tools": [message_pb2.Tool(type="function")]}}, "ALREADY_EXISTS", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_CHATS)
async def test_a_bad_chat_is_answered_singly_and_never_sampled(listening, policy, what):
    house = await listening()
    fields, code, field = BAD_CHATS[what]
    async with house.innocent():
        server = await house.server()
        await server.attach()
        done = house.run("r")
        request = await server.accept()
        await server.ask(request)
        asked = len(policy.asked)
        refused = await server.ask(request, **fields)
        assert (refused.status.code, refused.WhichOneof("result")) == (CODE[code], "status")
        assert refused.number == fields.get("number", 1)
        if code == "INVALID_ARGUMENT":
            assert field_of(refused.status) == field
        elif code == "FAILED_PRECONDITION":
            assert details(refused.status, error_pb2.UnknownChat).number == fields["delta"].continues
        assert len(policy.asked) == asked
        again = await server.ask(request, 2, delta=delta(1, "and?"))
        assert again.response.message.text == "fine"
        await server.complete(request)
        await done


async def test_a_full_history_after_an_unknown_delta_is_answered_with_the_whole_prompt(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    first = (await server.ask(request)).response
    assert (await server.ask(request, 2, delta=delta(9, "and?"))).status.code == CODE["FAILED_PRECONDITION"]
    history = [*request.messages, first.message, message_pb2.Message(role="user", text="and?")]
    second = (await server.ask(request, 2, full={"messages": history})).response
    assert second.prompt_prefix == 0
    assert list(second.prompt.ids[: len(first.prompt.ids) + 2]) == [*first.prompt.ids, *first.tokens.ids]
    again = (await server.ask(request, 2, delta=delta(1, "and?"))).response
    assert list(again.tokens.ids) == list(second.tokens.ids), "the same chat in another form has the same reply"
    assert again.prompt_prefix == len(first.prompt.ids) + 2
    await server.complete(request)
    await done


async def test_a_chat_is_sampled_once_over_any_number_of_streams(listening, policy):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    policy.may.clear()
    await server.send(chat(request), chat(request))
    first = server.stream
    await server.attach()
    assert await first.ended() == "ABORTED"
    await server.send(chat(request))
    await server.stream.cut()
    await server.attach()
    await server.send(chat(request), chat(request))
    await server.complete(request, result_id="")  # answered in order: all of it was read
    policy.may.set()
    await server.send(window(10))
    await within(done)
    assert policy.asked == [("r", 1, "main", 1)]


async def test_an_answer_on_its_way_at_a_break_comes_on_the_next_stream(listening, policy):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    policy.may.clear()
    await server.send(chat(request))
    await server.attach()
    await server.send(chat(request), chat(request))
    await server.send(chat(request, 0))
    assert (await server.stream.next("chat_reply")).number == 0, "both were read, and are not answered yet"
    policy.may.set()
    assert (await server.stream.next("chat_reply")).response.message.text == "fine"
    await server.complete(request)
    await done
    assert server.stream.count("chat_reply") == 2, "asked twice on a stream, answered once"
    assert len(policy.asked) == 1


# Completions.


async def test_a_result_is_recorded_once(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    for result_id, outcome in (("one", "RECORDED"), ("one", "ALREADY_RECORDED"), ("two", "CONFLICT")):
        told = await server.complete(request, result_id=result_id)
        assert (told.result_id, told.outcome) == (result_id, pb.CompleteOutcome.Value(f"COMPLETE_OUTCOME_{outcome}"))
    assert (await done).result_id == "one"
    refused = await server.ask(request, 2)
    assert refused.status.code == CODE["FAILED_PRECONDITION"], "it has ended"


BAD_COMPLETIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no status": ({"status": 0}, "INVALID_ARGUMENT", "completion.status"),
    "no rollout": ({"rollout_id": ""}, "INVALID_ARGUMENT", "completion.rollout_id"),
    "a failure with a reward": ({"status": 2, "reward": 0.0}, "INVALID_ARGUMENT", "completion.reward"),
    "no number for a reward": ({"reward": float("nan")}, "INVALID_ARGUMENT", "completion.reward"),
    "no JSON": ({"extra_json": "no"}, "INVALID_ARGUMENT", "completion.extra_json"),
    "a reference to no sample": ({"messages_after": rollout_pb2.ChatRef(sample="x", number=1)}, "INVALID_ARGUMENT",
                                 "completion.messages_after"),
    "an unknown rollout": ({"rollout_id": "nobody's"}, "UNAVAILABLE", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_COMPLETIONS)
async def test_a_bad_completion_is_answered_singly(listening, what):
    house = await listening()
    fields, code, field = BAD_COMPLETIONS[what]
    async with house.innocent():
        server = await house.server()
        await server.attach()
        done = house.run("r")
        request = await server.accept()
        refused = await server.complete(request, **fields)
        assert (refused.status.code, refused.result_id) == (CODE[code], "result of r")
        if field:
            assert field_of(refused.status) == field
        else:
            assert details(refused.status, error_details_pb2.RetryInfo) is not None
        assert (await server.complete(request)).outcome == pb.COMPLETE_OUTCOME_RECORDED
        assert (await done).status is CompletionStatus.COMPLETED


async def test_what_a_completion_refers_to_and_nobody_has_is_not_recorded(listening):
    house = await listening()
    async with house.innocent():
        server = await house.server()
        await server.attach()
        done = house.run("r")
        request = await server.accept()
        await server.send(complete(request, **referring(1, runs=(1, 2))))
        wanted = await server.stream.next("subscribe")
        assert (wanted.request.rollout_id, wanted.request.attempt, wanted.tokens) == ("r", 1, True)
        gone = attach_pb2.Unsubscribed(id=wanted.id, status=status(grpc.StatusCode.OUT_OF_RANGE, "gone"))
        await server.send(attach_pb2.ServerFrame(unsubscribed=gone))
        assert (await server.stream.next("complete_reply")).status.code == CODE["UNAVAILABLE"]
        assert not done.done()
        runs = (len((await server.ask(request)).response.prompt.ids), 2)
        assert (await server.complete(request, **referring(1, runs=runs))).outcome == pb.COMPLETE_OUTCOME_RECORDED
        assert (await done).samples["main"].segments


async def test_a_lower_attempts_chats_and_results_are_answered_aborted(listening, policy):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r", attempt=3)
    request = await server.accept()
    older = rollout_pb2.InitRequest(rollout_id="r", attempt=2, messages=request.messages)
    for refused in (await server.ask(older), await server.complete(older)):
        assert refused.status.code == CODE["ABORTED"]
        assert details(refused.status, error_pb2.CurrentAttempt).attempt == 3
    await server.complete(request)
    assert (await done).attempt == 3
    assert not policy.asked


# Inits, windows, servers that come back.


async def test_inits_keep_to_the_servers_window(listening):
    house = await listening()
    server = await house.server()
    await server.attach(max_open_rollouts=0)
    done = [house.run(f"r{n}") for n in range(3)]
    async with house.innocent():
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


async def test_a_refused_init_is_raised_or_sent_again(listening):
    house = await listening()
    async with house.innocent():
        server = await house.server()
        await server.attach()
        later, never = house.run("later"), house.run("never")
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
    house = await listening()
    server = await house.server()
    await server.attach()
    stream = server.stream
    one, two = house.run("one"), house.run("two")
    requests = [await server.stream.next("init") for _ in range(2)]
    await server.send(accepted(requests[0], message_pb2.Tool(type="function", extra_json="no")), accepted(requests[1]))
    await server.complete(requests[1])
    assert stream.over is None
    assert (await two).rollout_id == "two"
    with pytest.raises(Internal, match="cannot be read"):
        await one


async def test_an_event_that_cannot_be_read_ends_its_subscription_alone(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    reading = begun(anext(aiter(house.trainer.events("r"))))
    wanted = await server.stream.next("subscribe")
    await server.send(event(wanted.id, 1, "r", logged={"name": "a", "data_json": "no"}))
    await asyncio.wait({reading}, timeout=1)
    assert server.stream.over is None
    with pytest.raises(InvalidArgument):
        reading.result()
    await server.complete(request)
    await done


async def test_a_server_that_comes_back_is_known_by_its_journal(listening):
    house = await listening()
    server, other = await house.server(), await house.server()
    first = await server.attach()
    await server.stream.cut()
    second = await server.attach()
    assert (second.attachment_id, second.journal_id) == (first.attachment_id, server.journal_id)
    third = await other.attach(journal_id=server.journal_id)
    assert third.attachment_id == first.attachment_id
    assert await server.stream.ended() == "ABORTED"
    assert len(house.trainer.servers) == 1
    fourth = await server.attach(journal_id="another journal")
    assert fourth.attachment_id != first.attachment_id
    assert fourth.journal_id == ""
    assert other.stream.over is None
    assert {s.journal_id for s in house.trainer.servers} == {server.journal_id, "another journal"}


async def test_two_servers_without_a_journal_are_two_servers(listening):
    house = await listening()
    one, two = await house.server(), await house.server()
    first, second = await one.attach(journal_id=""), await two.attach(journal_id="")
    assert first.attachment_id != second.attachment_id
    assert len(house.trainer.servers) == 2
    await one.send(HEARTBEAT)
    assert one.stream.over is None


async def test_after_a_break_unanswered_inits_and_cancels_come_again_and_open_rollouts_are_listed(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    opened = house.run("opened")
    await server.accept()
    waiting = house.run("waiting")
    unanswered = await server.stream.next("init")
    cancelled = begun(house.trainer.cancel("opened", reason="enough"))
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
    assert (await waiting).status is CompletionStatus.COMPLETED
    assert not opened.done()
    await server.complete(rollout_pb2.InitRequest(rollout_id="opened", attempt=1), status=3)
    assert (await opened).status is CompletionStatus.CANCELLED


async def test_an_unknown_rollout_is_started_again_with_a_higher_attempt(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    await server.accept()
    await server.stream.cut()
    await server.attach()
    refs = (await server.stream.next("open_rollouts")).rollouts
    await server.send(attach_pb2.ServerFrame(unknown_rollouts={"rollouts": refs}))
    request = await server.accept()
    assert (request.rollout_id, request.attempt) == ("r", 2)
    await server.complete(request)
    assert (await done).attempt == 2


async def test_a_lost_servers_rollouts_go_to_another(listening):
    house = await listening(lost_after=0.2)
    server, other = await house.server(), await house.server()
    await server.attach()
    done = house.run("r")
    await server.accept()
    await other.attach()
    await server.stream.cut()
    request = await other.accept()
    assert request.attempt == 2
    await other.complete(request)
    assert (await done).attempt == 2
    await server.attach()
    cancel = (await server.stream.next("cancel")).request
    assert (cancel.rollout_id, cancel.attempt) == ("r", 1), "it is told what runs elsewhere"


async def test_a_lost_server_that_comes_back_with_all_its_rollouts_is_of_use_again(serve, policy, stack, monkeypatch):
    module = importlib.import_module("osmosis_grpc.trainer.attach")
    monkeypatch.setattr(module, "redial", functools.partial(link_stream.redial, pauses=(0.2, 0.4)))
    servers = [await serve(Talk(), max_concurrent=1, max_queued=0) for _ in range(2)]

    async def hold(request: Any) -> Any:
        return await policy(request) if request.rollout_id == "held" else answer(request, "fine", tokens=2)

    policy.may.clear()
    trainer = await stack.enter_async_context(attach([s.address for s in servers], hold, lost_after=0.05))
    house = House(trainer, stack)
    while not all(server.attached for server in trainer.servers):
        await asyncio.sleep(0.01)
    talk = {"metadata": {"turns": 1}}
    held = house.run("held", **talk)
    while not policy.asked:
        await asyncio.sleep(0.01)
    (holder,) = [server for server in servers if server.engine.capacity().running]
    holder.attachments._open()[0]._stream.end(Unavailable("cut"))
    while ("held", 2, "main", 1) not in policy.asked:
        await asyncio.sleep(0.01)
    other = house.run("other", **talk)
    await asyncio.wait({other}, timeout=2)
    assert other.done(), "there is room for it where the first attempt ran"
    policy.may.set()
    assert (await held).attempt == 2


async def test_nobody_there_is_told_to_who_waits(listening):
    house = await listening(lost_after=0.1)
    with pytest.raises(Unavailable, match="no agent server was there"):
        await house.run("r")


async def test_a_draining_server_gets_no_inits(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    await server.send(attach_pb2.ServerFrame(draining={}), chat(rollout_pb2.InitRequest(rollout_id="x"), 0))
    await server.stream.next("chat_reply")
    async with house.innocent():
        done = house.run("r")
    assert server.stream.count("init") == 0
    other = await house.server()
    await other.attach(max_open_rollouts=50)
    await other.complete(await other.accept())
    await done


async def test_events_go_on_after_a_break_without_gaps(listening):
    house = await listening()
    server = await house.server()
    await server.attach()
    done = house.run("r")
    request = await server.accept()
    seen: list[int] = []

    async def read() -> None:
        async for told in house.trainer.events("r"):
            seen.append(told.number)

    reading = begun(read())
    wanted = await server.stream.next("subscribe")
    assert wanted.request.after == 0
    await server.send(*(event(wanted.id, n, "r", started={}) for n in (1, 2, 3)), chat(request, 0))
    await server.stream.next("chat_reply")
    await server.stream.cut()
    await server.attach()
    again = await server.stream.next("subscribe")
    assert (again.id, again.request.after) == (wanted.id, 3)
    await server.send(
        *(event(wanted.id, n, "r", started={}) for n in (3, 4)), attach_pb2.ServerFrame(unsubscribed={"id": wanted.id})
    )
    await reading
    assert seen == [1, 2, 3, 4]
    await server.complete(request)
    await done


# Signs of life.


async def test_the_trainer_shows_signs_of_life_and_wants_some(listening, monkeypatch):
    for name, seconds in (("_BEAT", 0.02), ("HEARTBEAT", 0.05)):
        monkeypatch.setattr(link_stream, name, seconds)
    house = await listening()
    server = await house.server()
    before = await server.attach()
    done = house.run("r")
    request = await server.accept()
    await server.stream.next("heartbeat")
    with monkeypatch.context() as patch:
        patch.setattr(link_stream, "SILENCE", 0.2)
        assert await server.stream.ended() == "UNAVAILABLE"
    assert "nothing was heard" in server.stream.details
    assert (await server.attach()).attachment_id == before.attachment_id
    await server.complete(request)
    assert (await done).attempt == 1


# Servers that the trainer dials.


DIALLED: dict[str, Any] = {
    "no hello": lambda: services_pb2.AttachResponse(frames=[HEARTBEAT]),
    "nothing known": lambda: services_pb2.AttachResponse(frames=[hello(), attach_pb2.ServerFrame()]),
    "two hellos": lambda: services_pb2.AttachResponse(frames=[hello(), hello()]),
    "a newer protocol": lambda: services_pb2.AttachResponse(frames=[hello(protocol_min=2, protocol_max=2)]),
    "too many frames": lambda: services_pb2.AttachResponse(frames=[hello(), *[HEARTBEAT] * 4096]),
}


@pytest.mark.parametrize("what", DIALLED)
async def test_a_dialled_server_that_breaks_the_rules_is_left_and_dialled_again(listening, what):
    async with host() as (servers, target):
        house = await listening(target)
        async with house.innocent():
            stream = await within(servers.streams.get())
            greeting = await stream.next("hello")
            assert stream.count("hello") == len(stream.frames), "nothing comes before both hellos"
            await stream.send_bytes(DIALLED[what]().SerializeToString())
            async with asyncio.timeout(1):
                await stream.ended()
            again = await within(servers.streams.get())
            assert (await again.next("hello")).attachment_id == greeting.attachment_id
            await again.send(hello(), chat(rollout_pb2.InitRequest(rollout_id="x"), 0))
            await again.next("chat_reply")
            done = house.run("r")
            request = await again.next("init")
            await again.send(accepted(request), complete(request))
            assert (await done).status is CompletionStatus.COMPLETED


async def test_a_silent_dialled_server_is_left_and_dialled_again(listening, monkeypatch):
    monkeypatch.setattr(link_stream, "HELLO_LIMIT", 0.2)
    async with host() as (servers, target):
        await listening(target)
        stream = await within(servers.streams.get())
        await stream.ended()
        await within(servers.streams.get())
