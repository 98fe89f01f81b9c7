"""An attachment as a raw trainer sees it: hellos, histories, windows, breaks, events, ends."""

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import pytest

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, error_pb2, rollout_pb2
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.link import stream as link_stream
from osmosis_grpc.server import attachment as server_attachment
from tests.server.raw_trainer import (
    HEARTBEAT,
    RawTrainer,
    Talk,
    Wide,
    cancel,
    chat_reply,
    init,
    innocent,
    recorded,
    reply,
    subscribe,
    window,
)

MIB = 1024 * 1024
COMPLETED, FAILED = rollout_pb2.COMPLETION_STATUS_COMPLETED, rollout_pb2.COMPLETION_STATUS_FAILED


def plays(run: Any, tools: Any = (), name: str = "talk") -> RolloutAgentLoop:
    """An agent loop whose run is a function of its context."""
    body = {"name": name, "run": lambda self, ctx: run(ctx), "get_tools": lambda self, request: list(tools)}
    return type("Plays", (RolloutAgentLoop,), body)()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def key(chat: Any) -> tuple[str, int, str, int]:
    return chat.rollout_id, chat.attempt, chat.sample, chat.number


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


async def asked(trainer: RawTrainer, rollout_id: str, count: int, name: str = "asked") -> None:
    """Wait until the agent has asked that many chats, whether or not they were sent."""
    await trainer.send(subscribe(name, rollout_id))

    def requested() -> int:
        events = trainer.stream.all("event")
        return sum(e.id == name and e.response.event.WhichOneof("kind") == "chat_requested" for e in events)

    await trainer.stream.until(lambda: requested() == count)
    await trainer.barrier()


# Hello, and a rollout from its Init to its completion.


async def test_the_server_says_who_it_is(serve):
    server = await serve(Talk(), Wide(), max_concurrent=5, max_queued=2)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(protocol_min=0, protocol_max=99)
        hello = stream.all("hello")[0]
        assert stream.frames[0].WhichOneof("frame") == "hello"
        assert hello.attachment_id == trainer.attachment_id
        assert (hello.protocol_min, hello.protocol_max) == (1, 1)
        assert (hello.max_open_rollouts, list(hello.agent_loops), hello.draining) == (7, ["talk", "wide"], False)
        assert hello.journal_id
        assert hello.process_uuid
        assert hello.limits.max_message_bytes == 64 * MIB
        await trainer.barrier()
        assert (stream.count("hello"), stream.count("window")) == (1, 0), "what the hello told is not told again"


@pytest.mark.parametrize("attachment_id", ["a" * 16, "a" * 256, "ünîcödé is text as well"])
async def test_attachment_ids_of_every_size(serve, attachment_id):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(attachment_id=attachment_id)
        assert stream.all("hello")[0].attachment_id == attachment_id


async def test_a_rollout_travels_by_reference(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        answer = await trainer.start("r", turns=3)
        assert (answer.started, [tool.function.name for tool in answer.tools]) == (True, ["nod"])
        completion = await trainer.finish()
        first, second, third = stream.all("chat")
        assert texts(first.full.messages) == ["How are you?"]
        assert (second.delta.continues, texts(second.delta.messages)) == (1, ["so much for turn 1"])
        assert (third.delta.continues, texts(third.delta.messages)) == (2, ["so much for turn 2"])
        assert not any(chat.HasField("tools") for chat in (first, second, third))

        assert (completion.messages_after.sample, completion.messages_after.number) == ("main", 3)
        assert texts(completion.messages) == ["so much for turn 3"]
        sample = completion.samples["main"]
        assert (sample.trainable, sample.not_trainable_reason, list(sample.messages)) == (True, "", [])
        (segment,) = sample.segments
        assert (list(segment.ids), list(segment.logprobs)) == ([], [])
        assert (list(segment.chats), list(segment.mask_runs)) == ([1, 2, 3], [1, 1, 1, 1, 1, 1])
        assert (completion.status, completion.reward, list(completion.omitted)) == (COMPLETED, 1.0, [])


async def test_the_message_size_does_not_grow_with_the_history(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=40)
        await trainer.finish()
        sizes = [chat.ByteSize() for chat in stream.all("chat")[1:]]
        assert max(sizes) - min(sizes) <= 2, "but for the digits of its numbers"


# Histories.


async def test_a_loop_that_rewinds_continues_the_older_chat(serve):
    async def run(ctx):
        start = list(ctx.request.messages)
        one = [*start, (await ctx.chat(start)).message, user("left")]
        await ctx.chat(one)
        await ctx.chat([*one[:-1], user("right")])
        return ctx.complete([*one[:-1], user("the end")])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        completion = await trainer.finish()
        _, left, right = stream.all("chat")
        assert (left.number, left.delta.continues, texts(left.delta.messages)) == (2, 1, ["left"])
        assert (right.number, right.delta.continues, texts(right.delta.messages)) == (3, 1, ["right"])
        assert (completion.messages_after.number, texts(completion.messages)) == (1, ["the end"])
        assert [list(segment.chats) for segment in completion.samples["main"].segments] == [[1, 2], [3]]


async def test_an_edited_history_goes_in_full(serve):
    async def run(ctx):
        messages = list(ctx.request.messages)
        messages += [(await ctx.chat(messages)).message, user("and?")]
        messages[0] = user("How were you?")
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete([user("something else")])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        completion = await trainer.finish()
        assert texts(stream.all("chat")[1].full.messages) == ["How were you?", "fine", "and?"]
        assert not completion.HasField("messages_after")
        assert texts(completion.messages) == ["something else"]


async def test_tools_travel_only_where_the_loop_chose_its_own(serve):
    tool = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}

    async def run(ctx):
        for tools in (None, [tool], [], ctx.tools):
            await ctx.chat(ctx.request.messages, tools=tools)
        return ctx.complete([])

    server = await serve(plays(run, [tool]))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        await trainer.finish()
        told = [[t.function.name for t in c.tools.tools] if c.HasField("tools") else None for c in stream.all("chat")]
        assert told == [None, ["own"], [], ["own"]]


async def test_a_trainer_that_wants_full_histories_gets_them(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(history=rollout_pb2.HISTORY_FORM_FULL)
        await trainer.start("r", turns=3)
        await trainer.finish()
        assert [len(chat.full.messages) for chat in stream.all("chat")] == [1, 3, 5]
        await trainer.attach(history=rollout_pb2.HISTORY_FORM_DELTA)
        await trainer.start("s", turns=2)
        await trainer.finish()
        assert trainer.stream.all("chat")[1].delta.continues == 1


async def test_an_open_chat_comes_again_in_the_form_that_the_new_stream_wants(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat())
        assert (await trainer.chat()).WhichOneof("history") == "delta"
        await trainer.stream.cut()
        await trainer.attach(history=rollout_pb2.HISTORY_FORM_FULL)
        assert (await trainer.chat()).WhichOneof("history") == "full"


# Breaks, and streams that take over.


async def test_what_is_unanswered_comes_again_on_the_next_stream(serve):
    server = await serve(Talk(), Wide())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("over")
        await trainer.answer(await trainer.chat())
        before = await trainer.completion()
        await trainer.start("wide", agent_loop="wide", turns=3)
        chats = [await trainer.chat() for _ in range(3)]
        await trainer.answer(chats[1])
        for _ in range(3):
            await trainer.stream.cut()
            stream = await trainer.attach()
            await trainer.barrier()
            assert [key(chat) for chat in stream.all("chat")] == [key(chats[0]), key(chats[2])], "each once, in order"
            assert stream.all("chat") == [chats[0], chats[2]]
            assert [c.completion for c in stream.all("complete")] == [before]
        assert (await trainer.settled()).result_id == before.result_id
        assert (await trainer.finish()).rollout_id == "wide"
        await trainer.stream.cut()
        stream = await trainer.attach()
        await trainer.barrier()
        assert (stream.count("chat"), stream.count("complete")) == (0, 0)


async def test_an_agent_goes_on_between_two_streams(serve):
    gate = asyncio.Event()

    async def run(ctx):
        await gate.wait()
        return ctx.complete([(await ctx.chat(ctx.request.messages)).message])

    server = await serve(plays(run))
    async with innocent_watcher(server) as watcher, RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.stream.cut()
        gate.set()
        await asked(watcher, "r", 1)
        stream = await trainer.attach()
        assert (await trainer.finish()).status == COMPLETED
        assert stream.count("chat") == 1


def innocent_watcher(server: Any) -> Any:
    """Another trainer of the same owner, who looks on."""

    class Watcher(RawTrainer):
        async def __aenter__(self):
            await self.attach()
            return self

    return Watcher(server.address)


async def test_a_second_stream_replaces_the_first(serve):
    server = await serve(Talk())
    async with innocent(server), RawTrainer(server.address) as trainer:
        first = await trainer.attach()
        await trainer.start("over")
        await trainer.answer(await trainer.chat())
        completion = await trainer.completion()
        await trainer.start("r", turns=2)
        chat = await trainer.chat()
        second = await trainer.attach()
        assert await first.ended() == "ABORTED"
        assert second.count("hello") == 1
        assert await trainer.chat() == chat
        assert await trainer.completion() == completion
        await trainer.send(recorded(completion))
        await trainer.answer(chat)
        assert (await trainer.finish()).status == COMPLETED
        await trainer.barrier()
        assert (second.count("chat"), second.count("complete")) == (2, 2)
        attached = [a for a in server.attachments._attachments.values() if a.attached]
        assert len(attached) == 2


async def test_a_silent_chat_is_asked_again_on_the_same_stream(serve, monkeypatch):
    monkeypatch.setattr(server_attachment, "_TICK", 0.05)
    server = await serve(Talk(), chat_silence=0.1)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        assert await trainer.chat() == chat
        await trainer.answer(chat)
        completion = await trainer.completion()
        assert await trainer.completion() == completion
        await trainer.send(recorded(completion))


async def test_a_chat_that_cannot_be_answered_now_is_asked_again(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            chat = await trainer.chat()
            assert chat.number == 1
            await trainer.send(chat_reply(chat, status=error_pb2.Status(code=code.value[0], message="later")))
        assert (await trainer.finish()).status == COMPLETED
        assert trainer.stream.count("chat") == 3


async def test_a_completion_that_cannot_be_recorded_now_comes_again(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        completion = await trainer.completion()
        refused = recorded(completion)
        refused.complete_reply.status.CopyFrom(error_pb2.Status(code=14, message="later"))
        await trainer.send(refused)
        assert await trainer.completion() == completion
        unspecified = recorded(completion)
        unspecified.complete_reply.outcome = 0
        await trainer.send(unspecified)
        assert await trainer.settled() == completion
        await trainer.barrier()
        assert server.engine.capacity().undelivered == 0


# Inits and what is open.


async def test_started_is_true_in_one_answer_over_all_streams(serve):
    gate = asyncio.Event()

    class Slow(Talk):
        tells_tools = False

        async def get_tools(self, request):
            await gate.wait()
            return []

    server = await serve(Slow())
    async with RawTrainer(server.address) as trainer:
        first = await trainer.attach()
        await trainer.send(init("r"), init("r"))
        await trainer.barrier()
        second = await trainer.attach()
        await trainer.send(init("r"))
        await trainer.barrier()
        gate.set()
        await second.until(lambda: second.count("init_reply") == 3)
        await trainer.send(init("r"))
        await second.until(lambda: second.count("init_reply") == 4)
        replies = [*first.all("init_reply"), *second.all("init_reply")]
        assert sorted(r.response.started for r in replies) == [False, False, False, True]
        assert (await trainer.finish()).status == COMPLETED


async def test_a_delivered_completion_is_sent_again_to_who_asks_with_its_init(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        await trainer.attach()
        await trainer.start("r")
        completion = await trainer.finish()
        await trainer.barrier()
        assert not (await trainer.start("r")).started
        assert await trainer.settled() == completion
        await other.attach()
        assert not (await other.start("r")).started
        assert await other.settled() == completion


async def test_another_body_and_a_lower_attempt_are_refused_singly(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", attempt=2)
        await trainer.send(init("r", attempt=2, turns=7), init("r", attempt=1))
        codes = [(await trainer.stream.next("init_reply")).status.code for _ in range(2)]
        assert codes == [grpc.StatusCode.ALREADY_EXISTS.value[0], grpc.StatusCode.ABORTED.value[0]]
        assert (await trainer.finish()).attempt == 2


async def test_a_higher_attempt_replaces_the_lower_within_a_full_window(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0, stop_again_after=(0.05,))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        old = await trainer.chat()
        await trainer.send(init("r", attempt=2))
        told = await stream.next("init_reply")
        if told.WhichOneof("result") == "response":
            assert told.response.started
            chat = await trainer.chat()
            assert key(chat) == ("r", 2, "main", 1)
            await trainer.answer(chat)
            assert (await trainer.settled()).attempt == 2
            await trainer.answer(old)
            await trainer.barrier()
        else:
            assert told.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "until the old one has stopped"
        assert stream.over is None


async def test_a_rollout_moves_to_the_attachment_that_asks_for_it(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        await trainer.attach()
        await trainer.start("r", turns=2)
        chat = await trainer.chat()
        await other.attach()
        assert not (await other.start("r", turns=2)).started
        assert await other.chat() == chat
        await trainer.send(chat_reply(chat, response=reply("too late")))
        await trainer.barrier()
        await other.answer(chat)
        assert (await other.finish()).status == COMPLETED
        assert texts(other.stream.all("chat")[1].delta.messages) == ["so much for turn 1"]
        await trainer.barrier()
        assert trainer.stream.count("complete") == 0


@pytest.mark.parametrize("delivered", [False, True])
async def test_a_completion_that_moved_to_another_attachment_survives_its_break(serve, delivered):
    server = await serve(Talk())
    async with RawTrainer(server.address) as gone, RawTrainer(server.address) as trainer:
        await gone.attach()
        await gone.start("r")
        await gone.answer(await gone.chat())
        completion = await (gone.settled() if delivered else gone.completion())
        await gone.barrier()
        await gone.stream.cut()
        await trainer.attach()
        await trainer.start("r")
        assert await trainer.completion() == completion
        await trainer.stream.cut()
        stream = await trainer.attach()
        await trainer.send(open_rollouts(("r", 1)))
        assert not (await stream.next("unknown_rollouts")).rollouts, "the server says that it has it"
        await trainer.barrier()
        assert [c.completion for c in stream.all("complete")] == [completion]


def open_rollouts(*refs: tuple[str, int]) -> attach_pb2.TrainerFrame:
    listed = [attach_pb2.RolloutRef(rollout_id=name, attempt=attempt) for name, attempt in refs]
    return attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=listed))


async def test_open_rollouts_that_are_unknown_are_named(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("ended")
        await trainer.finish()
        await trainer.start("running")
        stream = await trainer.attach()
        lists = [
            [("running", 1), ("unknown", 1), ("ended", 1), ("running", 2)],
            [],
            [("running", 1)],
            [("ended", 2), ("\n", 3)],
        ]
        await trainer.send(*(open_rollouts(*refs) for refs in lists))
        told = [(await stream.next("unknown_rollouts")).rollouts for _ in lists]
        unknown = [("unknown", 1), ("running", 2)]
        assert [[(r.rollout_id, r.attempt) for r in refs] for refs in told] == [unknown, [], [], lists[3]]


async def test_cancels_by_id_by_group_and_of_all(serve):
    server = await serve(Talk())
    async with innocent(server) as other, RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        for name, group in (("a", "g"), ("b", "g"), ("c", "h")):
            await trainer.start(name, group=rollout_pb2.Group(id=group))
        await trainer.send(cancel("1", rollout_id="c"), cancel("2", group_id="g"), cancel("3", group_id="g"))
        rows = [(await stream.next("cancel_reply")).response.results for _ in range(3)]
        names = [sorted(row.rollout_id for row in some) for some in rows]
        assert names[:2] == [["c"], ["a", "b"]]
        assert {row.disposition for some in rows for row in some} == {control_pb2.CANCEL_DISPOSITION_CANCELLED}
        ended = [await trainer.settled() for _ in range(3)]
        assert {c.status for c in ended} == {rollout_pb2.COMPLETION_STATUS_CANCELLED}
        await trainer.send(cancel("4", rollout_id="c"))
        row = (await stream.next("cancel_reply")).response.results[0]
        assert row.disposition == control_pb2.CANCEL_DISPOSITION_ALREADY_ENDED
        assert other.stream.count("complete") == 0


async def test_a_cancel_that_comes_before_its_init_wins(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.send(cancel("c", rollout_id="r"), init("r"))
        assert (await trainer.settled()).status == rollout_pb2.COMPLETION_STATUS_CANCELLED
        await trainer.barrier()
        assert trainer.stream.count("chat") == 0


# Windows.


async def test_never_more_chats_are_open_than_the_trainer_allows(serve):
    server = await serve(Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("r", agent_loop="wide", turns=9)
        await asked(trainer, "r", 9)
        assert stream.count("chat") == 0, "0 is pause"
        await trainer.send(window(2))
        await trainer.barrier()
        assert stream.count("chat") == 2
        await trainer.answer(await trainer.chat())
        await trainer.barrier()
        assert stream.count("chat") == 3, "an answer makes room for one"
        await trainer.send(window(5))
        await trainer.barrier()
        assert stream.count("chat") == 6, "five are open"
        await trainer.send(window(3))
        for _ in range(2):
            await trainer.answer(await trainer.chat())
            await trainer.barrier()
        assert stream.count("chat") == 6, "three are open: none of them was taken back, none came"
        await trainer.answer(await trainer.chat())
        await trainer.barrier()
        assert stream.count("chat") == 7
        assert (await trainer.finish()).status == COMPLETED
        assert sorted(chat.sample for chat in stream.all("chat")) == [f"s{n}" for n in range(9)]


async def test_the_next_streams_window_holds_for_what_comes_again(serve):
    server = await serve(Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=5)
        await trainer.start("r", agent_loop="wide", turns=6)
        await stream.until(lambda: stream.count("chat") == 5)
        stream = await trainer.attach(max_open_chats=2)
        await trainer.barrier()
        assert [chat.sample for chat in stream.all("chat")] == ["s0", "s1"]
        assert (await trainer.finish()).status == COMPLETED
        assert [chat.sample for chat in stream.all("chat")] == [f"s{n}" for n in range(6)]


async def test_a_cancelled_rollouts_chat_counts_until_it_is_answered(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=1)
        await trainer.start("one")
        chat = await trainer.chat()
        await trainer.send(cancel("c", rollout_id="one"))
        await trainer.settled()
        await trainer.start("two")
        await asked(trainer, "two", 1)
        assert stream.count("chat") == 1
        await trainer.answer(chat)
        assert (await trainer.chat()).rollout_id == "two"


async def test_the_servers_window_is_shared_evenly(serve):
    server = await serve(Talk(), max_concurrent=8, max_queued=4)
    async with (
        RawTrainer(server.address) as one,
        RawTrainer(server.address) as two,
        RawTrainer(server.address) as three,
    ):
        assert (await one.attach()).all("hello")[0].max_open_rollouts == 12
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 6
        assert (await one.stream.next("window")).max_open_rollouts == 6
        assert (await three.attach()).all("hello")[0].max_open_rollouts == 4
        for trainer in (one, two):
            assert (await trainer.stream.next("window")).max_open_rollouts == 4
        replaced = two.stream
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 4, "a stream that replaces one adds none"
        assert await replaced.ended() == "ABORTED"
        await three.stream.cut()
        for trainer in (one, two):
            assert (await trainer.stream.next("window")).max_open_rollouts == 6
        await two.stream.cut()
        assert (await one.stream.next("window")).max_open_rollouts == 12
        await one.barrier()
        assert one.stream.fresh("window") == 0
        await server.drain()
        assert (await one.stream.next("window")).max_open_rollouts == 0
        assert not (await one.stream.next("draining")).last


async def test_everybody_gets_at_least_one(serve):
    server = await serve(Talk(), max_concurrent=1, max_queued=0)
    async with RawTrainer(server.address) as one, RawTrainer(server.address) as two:
        await one.attach()
        assert (await two.attach()).all("hello")[0].max_open_rollouts == 1
        await one.start("r")
        await two.send(init("s"))
        refused = await two.stream.next("init_reply")
        assert refused.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "there is but one slot"
        await one.finish()
        await two.start("s")


async def test_a_server_that_stops_says_so_last(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await server.stop(0.0)
        assert await stream.ended() == "UNAVAILABLE"
        assert [draining.last for draining in stream.all("draining")] == [False, True]
        assert stream.frames[-1].draining.last


# Signs of life, and a trainer that is away.


async def test_heartbeats_keep_a_stream_alive(serve, monkeypatch):
    for name, seconds in (("_BEAT", 0.02), ("HEARTBEAT", 0.05), ("SILENCE", 0.8)):
        monkeypatch.setattr(link_stream, name, seconds)
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        until = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < until:
            await stream.next("heartbeat")
            await stream.send(HEARTBEAT)
        await trainer.start("r")
        assert (await trainer.finish()).status == COMPLETED


async def test_a_stream_on_which_nothing_is_heard_ends_and_its_rollouts_wait(serve, monkeypatch):
    monkeypatch.setattr(link_stream, "_BEAT", 0.02)
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        with monkeypatch.context() as patch:
            patch.setattr(link_stream, "SILENCE", 0.2)
            assert await stream.ended() == "UNAVAILABLE"
        assert "nothing was heard" in stream.details
        await trainer.attach()
        assert await trainer.chat() == chat
        await trainer.answer(chat)
        assert (await trainer.settled()).status == COMPLETED


async def test_rollouts_end_when_their_trainer_stays_away_and_are_told_when_it_comes(serve):
    server = await serve(Talk(), trainer_grace=0.3)
    async with innocent_watcher(server) as watcher, RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat(), "one")
        await trainer.chat()
        await trainer.stream.cut()
        await watcher.send(subscribe("s", "r"))
        ended = await kinds_until(watcher, "s", "ended")
        assert ended[-1].event.ended.completion.status == FAILED
        stream = await trainer.attach()
        completion = await trainer.settled()
        assert (completion.status, completion.HasField("reward")) == (FAILED, False)
        failure = completion.failure
        assert (failure.boundary, failure.retryable) == (rollout_pb2.FAILURE_BOUNDARY_TRAINER, True)
        assert completion.messages_after.number == 1
        await trainer.barrier()
        assert stream.count("chat") == 0
        await trainer.start("afterwards")
        assert (await trainer.finish()).status == COMPLETED


async def test_a_trainer_that_comes_within_the_grace_period_finds_everything(serve):
    server = await serve(Talk(), trainer_grace=1.0)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.stream.cut()
        await trainer.attach()
        attachments = server.attachments
        assert not attachments._graces
        assert (await trainer.finish()).status == COMPLETED


async def test_a_completion_whose_trainer_never_comes_expires(serve):
    server = await serve(Talk(), trainer_grace=0.05, record_ttl=0.2, sweep_interval=0.05)
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        await trainer.completion()
        await trainer.stream.cut()
        async with asyncio.timeout(1.5):
            while not server.engine.capacity().expired:
                await asyncio.sleep(0.02)
    assert server.engine.capacity().undelivered == 0


async def test_a_trainer_may_leave_in_good_order(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        await stream.leave()
        assert await stream.ended() == "OK"
        await trainer.attach()
        assert await trainer.chat() == chat
        assert (await answered(trainer, chat)).status == COMPLETED


async def answered(trainer: RawTrainer, chat: Any) -> Any:
    await trainer.answer(chat)
    return await trainer.settled()


async def test_an_attachment_that_nobody_needs_is_forgotten(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.finish()
        await trainer.barrier()
        await trainer.stream.cut()
        async with RawTrainer(server.address) as other:
            await other.attach()
            await other.barrier()
            assert list(server.attachments._attachments) == [other.attachment_id]


# Events.


async def kinds_until(trainer: RawTrainer, name: str, last: str) -> list[Any]:
    """A subscription's answers up to an event of a kind."""

    def answers() -> list[Any]:
        return [e.response for e in trainer.stream.all("event") if e.id == name and e.response.HasField("event")]

    await trainer.stream.until(lambda: any(r.event.WhichOneof("kind") == last for r in answers()))
    return answers()


def numbers(answers: Any) -> list[int]:
    return [answer.event.number for answer in answers]


async def test_events_come_in_order_without_their_tokens_unless_asked(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.send(subscribe("plain", "r"), subscribe("tokens", "r", tokens=True))
        await trainer.finish()
        for _ in range(2):
            over = await stream.next("unsubscribed")
            assert not over.HasField("status"), "nothing more can happen"
        plain = await kinds_until(trainer, "plain", "delivered")
        full = await kinds_until(trainer, "tokens", "delivered")
        assert numbers(plain) == numbers(full) == list(range(1, len(plain) + 1))

        def blocks(answers):
            replies = [a.event.chat_answered for a in answers if a.event.WhichOneof("kind") == "chat_answered"]
            return [list(r.response.tokens.ids) for r in replies]

        assert blocks(plain) == [[], []]
        assert blocks(full) == [[1001], [1002]]
        await trainer.send(subscribe("later", "r", after=4))
        assert numbers(await kinds_until(trainer, "later", "delivered")) == numbers(plain)[4:]


async def test_a_subscription_of_the_same_name_replaces_the_first(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        for name in ("one", "two"):
            await trainer.start(name)
        await trainer.send(subscribe("s", "one"))
        await trainer.stream.until(lambda: stream.count("event") == 4)
        await trainer.send(subscribe("s", "two"))
        await trainer.stream.until(lambda: any(e.response.event.rollout_id == "two" for e in stream.all("event")))
        before = [e.response.event.number for e in stream.all("event") if e.response.event.rollout_id == "one"]
        for _ in range(2):
            await trainer.finish()
        await stream.next("unsubscribed")
        await trainer.barrier()
        after = [e.response.event.number for e in stream.all("event") if e.response.event.rollout_id == "one"]
        assert after == before, "the first is over"
        assert numbers(await kinds_until(trainer, "s", "delivered"))[len(before) :] == list(range(1, 9))
        assert stream.count("unsubscribed") == 1


async def test_no_event_comes_after_an_unsubscribe(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        await trainer.send(subscribe("s", "r"))
        await trainer.stream.until(lambda: stream.count("event") == 4)
        await trainer.send(attach_pb2.TrainerFrame(unsubscribe={"id": "s"}))
        await trainer.finish()
        await trainer.send(subscribe("t", "r"))
        await kinds_until(trainer, "t", "delivered")
        assert sum(e.id == "s" for e in stream.all("event")) == 4


async def test_a_subscription_goes_on_after_a_break_without_gaps(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=3)
        await trainer.send(subscribe("s", "r"))
        await stream.until(lambda: stream.count("event") == 4)
        seen = [e.response for e in stream.all("event")]
        await stream.cut()
        stream = await trainer.attach()
        await trainer.answer(await trainer.chat())
        await trainer.answer(await trainer.chat())
        assert stream.count("event") == 0, "subscriptions do not outlive their stream"
        assert not server.attachments._attachments[trainer.attachment_id]._subscriptions._tasks
        await trainer.send(subscribe("s", "r", after=seen[-1].event.number))
        await trainer.finish()
        seen += await kinds_until(trainer, "s", "delivered")
        assert numbers(seen) == list(range(1, len(seen) + 1))


async def test_all_rollouts_events_by_cursor_over_a_break(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.send(subscribe("all", ""))
        await trainer.start("a")
        await trainer.finish()
        seen = await kinds_until(trainer, "all", "delivered")
        await stream.cut()
        await trainer.attach()
        await trainer.start("b")
        await trainer.finish()
        await trainer.send(subscribe("all", "", cursor=seen[-1].cursor))
        seen += await kinds_until(trainer, "all", "delivered")
        assert [(a.event.rollout_id, a.event.number) for a in seen] == [(r, n) for r in "ab" for n in range(1, 9)]


# Batches.


async def test_what_waits_goes_out_together_within_the_limits(serve):
    size = 3000

    async def run(ctx):
        asks = [user("x" * size)]
        await asyncio.gather(*(ctx.chat(asks, sample=f"s{n}") for n in range(1000)))
        return ctx.complete([])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("r")
        await asked(trainer, "r", 1000)
        before = len(stream.messages)
        await trainer.send(window(1000))
        await stream.until(lambda: stream.count("chat") == 1000)
        batches = stream.messages[before:]
        assert len(batches) <= 8, "3 MB in messages of 1 MiB, and perhaps a few that found little to take"
        assert all(size <= MIB for _, size in batches)
        await stream.cut()


async def test_no_message_has_more_than_4096_frames(serve):
    server = await serve(Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("r", agent_loop="wide", turns=4200)
        await asked(trainer, "r", 4200)
        before = len(stream.messages)
        await trainer.send(window(5000))
        await stream.until(lambda: stream.count("chat") == 4200)
        counts = [count for count, _ in stream.messages[before:]]
        assert max(counts) <= 4096
        assert len(counts) <= 8
        await trainer.send(cancel("c", rollout_id="r"))
        await trainer.settled()


async def test_a_frame_above_the_limit_goes_alone(serve):
    text = "x" * (MIB + 10)

    async def run(ctx):
        return ctx.complete([(await ctx.chat([user(text)])).message])

    server = await serve(plays(run), Wide())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(max_open_chats=0)
        await trainer.start("wide", agent_loop="wide", turns=2)
        await trainer.start("large", agent_loop="talk")
        await trainer.start("small", agent_loop="wide", turns=3)
        await asked(trainer, "small", 3)
        before = len(stream.messages)
        await trainer.send(window(6))
        await stream.until(lambda: stream.count("chat") == 6)
        batches = stream.messages[before:]
        assert [frames for frames, size in batches if size > MIB] == [1]
        assert [chat.rollout_id for chat in stream.all("chat")] == ["wide", "wide", "large", "small", "small", "small"]


async def test_chats_go_before_events(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("long", turns=100)
        await trainer.finish()
        listed = len(stream.frames)
        await trainer.send(*(subscribe(f"s{n}", "long") for n in range(20)), init("next"))
        await stream.until(lambda: stream.count("unsubscribed") == 20)
        order = [frame.WhichOneof("frame") for frame in stream.frames[listed:]]
        events = [place for place, kind in enumerate(order) if kind == "event"]
        assert order.index("chat") < events[len(events) // 2]
        for name in ("s0", "s19"):
            told = [e.response.event.number for e in stream.all("event") if e.id == name]
            assert all(b == a + 1 for a, b in pairwise(told))
            assert told[0] == 1
