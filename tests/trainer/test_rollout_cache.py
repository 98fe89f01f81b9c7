"""What a trainer remembers: outcomes that refer to its chats, and callbacks with deltas."""

import asyncio
import itertools
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2
from osmosis_grpc.protocol.errors import CallError, FailedPrecondition, UnknownChat
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatRequest,
    OutcomeStatus,
    RolloutFilter,
    RolloutMetrics,
    RolloutOutcome,
    Sample,
    TrajectoryEvent,
)
from osmosis_grpc.protocol.types import events as kinds
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire
from osmosis_grpc.server import callbacks
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.trainer.conftest import PATIENCE, USER, reply
from tests.trainer.test_ledger import held_up

JUDGE = ChatPurpose.JUDGE


class Branching(RolloutAgentLoop):
    """Two samples, a branch, a judge, and messages after the last reply."""

    name = "branching"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        first = [*ctx.request.messages, (await ctx.chat(ctx.request.messages)).message]
        longer = [*first, USER, (await ctx.chat([*first, USER])).message]
        other = [*first, {"role": "user", "content": "other"}]
        other.append((await ctx.chat(other)).message)
        await ctx.chat([*longer, {"role": "user", "content": "good?"}], purpose=JUDGE)
        side = ctx.add_sample()
        side_messages = [USER]
        side_messages.append((await ctx.chat(side_messages, sample=side)).message)
        longer.append({"role": "user", "content": "after"})
        longer.append((await ctx.chat(longer)).message)
        return ctx.complete([*longer, {"role": "user", "content": "the end"}], reward=0.5)


class Straight(Branching):
    """One sample."""

    name = "straight"

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(3):
            messages += [(await ctx.chat(messages)).message, USER]
        return ctx.complete(messages, reward=0.0)


@pytest.fixture(params=[Straight, Branching], ids=["one sample", "several samples"])
async def run(request, serve, train):
    """A rollout that is over: its outcome as the server holds it, and its events."""
    server, trainer = await serve(request.param()), await train(reply)
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
        whole = await trainer.outcome("r", PATIENCE)
        told = [event async for event in client.events("r")]
    async for record in server.engine.context.table.after(0, "", 1, RolloutFilter()):
        own = record.delivery.outcome
    return whole, own, told


def asked_of(told: list[TrajectoryEvent]) -> list[tuple[kinds.ChatRequested, kinds.ChatAnswered]]:
    asked = {(e.kind.sample, e.kind.chat_number): e.kind for e in told if isinstance(e.kind, kinds.ChatRequested)}
    answered = [e.kind for e in told if isinstance(e.kind, kinds.ChatAnswered)]
    return [(asked[kind.sample, kind.chat_number], kind) for kind in answered]


def filled_book(told, leave_out=()):
    """A book whose policy gives the recorded replies."""
    replies = {(a.sample, a.chat_number): a.response for _, a in asked_of(told)}
    book = RolloutCache(lambda request: replies[request.sample, request.chat_number])
    for asked, _ in asked_of(told):
        if (asked.sample, asked.chat_number) not in leave_out:
            chat = book.chat(
                ChatRequest(
                    rollout_id="r",
                    sample=asked.sample,
                    chat_number=asked.chat_number,
                    messages=asked.messages,
                    parent_chat=asked.parent_chat,
                    params=asked.params,
                    purpose=asked.purpose,
                ),
                0.0,
            )
            chat.done.result()
    return book


def referring(outcome):
    message = outcome_to_wire(outcome, refer=True)
    return outcome_from_wire(outcome_pb2.RolloutOutcome.FromString(message.SerializeToString()), "outcome")


def alike(outcome, *, chats=True):
    samples = {
        name: replace(sample, begins=None, chats=sample.chats if chats else ())
        for name, sample in outcome.samples.items()
    }
    return replace(outcome, samples=samples, metrics=RolloutMetrics())


async def test_references_are_resolved(run):
    whole, own, told = run
    short = referring(own)
    assert all(sample.begins is not None for sample in short.samples.values())
    assert [m["content"] for m in short.messages] == ["the end" if len(own.samples) > 1 else USER["content"]]
    assert all(segment.referred for sample in short.samples.values() for segment in sample.segments)
    assert len(outcome_to_wire(own, refer=True).SerializeToString()) < len(outcome_to_wire(own).SerializeToString())
    book = filled_book(told)
    assert not book.rollout("r", 1, 0.0).lacks(short)
    outcome, recorded = book.complete(short, 0.0)
    assert outcome == "RECORDED"
    assert alike(recorded) == alike(whole)
    assert alike(recorded, chats=False) == alike(own, chats=False)
    for name, sample in recorded.samples.items():
        assert sample.trainable
        assert sample.segments == own.samples[name].segments
        assert sample.begins == own.samples[name].begins
    assert book.complete(short, 0.0) == ("ALREADY_RECORDED", None)
    assert book.complete(replace(short, result_id="another"), 0.0) == ("CONFLICT", None)


async def test_unknown_chats_are_read_from_the_events(run):
    whole, own, told = run
    short = referring(own)
    named = [(a.sample, a.chat_number) for a, _ in asked_of(told)]
    for left_out in [named, *([name] for name in named[-1:]), named[:1] if len(own.samples) > 1 else named]:
        rest = [name for name in named if name[0] == left_out[0][0]] if left_out == named[:1] else left_out
        book = filled_book(told, leave_out=rest)
        rollout = book.rollout("r", 1, 0.0)
        assert rollout.lacks(short)
        rollout.restore(told)
        assert not rollout.lacks(short)
        assert alike(book.complete(short, 0.0)[1]) == alike(whole)


async def test_a_sample_with_unknown_chats_is_not_trainable(run):
    _, own, _ = run
    book = RolloutCache(reply)
    short = referring(own)
    rollout = book.rollout("r", 1, 0.0)
    assert rollout.lacks(short)
    _, recorded = book.complete(short, 0.0)
    assert recorded.status == own.status
    for sample in recorded.samples.values():
        assert not (sample.trainable and any(segment.referred for segment in sample.segments)), "there are no tokens"


async def test_restoring_known_chats_changes_nothing(run):
    whole, own, told = run
    book = filled_book(told)
    book.rollout("r", 1, 0.0).restore(told)
    assert alike(book.complete(referring(own), 0.0)[1]) == alike(whole)


async def test_what_was_answered_before_a_resumption_does_not_count(run):
    whole, own, told = run
    stale = [
        replace(
            event,
            kind=replace(
                event.kind,
                response=replace(event.kind.response, message=USER | {"role": "assistant", "content": "stale"}),
            ),
        )
        for event in told
        if isinstance(event.kind, kinds.ChatAnswered)
    ]
    resumed = replace(told[0], kind=kinds.Resumed())
    book = RolloutCache(reply)
    rollout = book.rollout("r", 1, 0.0)
    asked = [event for event in told if isinstance(event.kind, kinds.ChatRequested)]
    rollout.restore([*asked, resumed, *stale, *told])
    assert alike(book.complete(referring(own), 0.0)[1]) == alike(whole)


@pytest.mark.parametrize("how", ["another mask", "a segment less", "other chats"])
async def test_masks_that_do_not_agree_are_not_trained_on(run, how):
    _, own, told = run
    short = referring(own)
    name = "main"
    segments = list(short.samples[name].segments)
    if how == "another mask":
        runs = segments[0].mask_runs
        segments[0] = replace(segments[0], mask_runs=(runs[0] + 1, runs[1] - 1, *runs[2:]))
    elif how == "a segment less":
        segments = [replace(segments[0], mask_runs=segments[0].mask_runs[:2])]
    else:
        segments[0] = replace(segments[0], chats=segments[0].chats[:-1])
    samples = {**short.samples, name: replace(short.samples[name], segments=tuple(segments))}
    _, recorded = filled_book(told).complete(replace(short, samples=samples), 0.0)
    sample = recorded.samples[name]
    assert (sample.trainable, sample.segments) == (False, ())
    assert "do not agree" in sample.not_trainable_reason
    assert list(sample.messages) == list(own.samples[name].messages)


def ask(book, number, messages, **fields):
    return book.chat(ChatRequest(rollout_id="r", chat_number=number, messages=messages, **fields), 0.0)


SAME = [{"role": "user", "content": "go"}]
AGAIN = [*SAME, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]


ORDERS = list(itertools.permutations([2, 3, 4]))


@pytest.mark.parametrize(("order", "unheard"), list(itertools.product(ORDERS, (False, True))))
async def test_chats_at_the_same_time_are_assembled_by_their_numbers(order, unheard):
    """Three chats continue the first one and are answered in any order. The reply to a fifth did not arrive."""
    replies = {}

    async def policy(request):
        await replies.setdefault(request.chat_number, asyncio.Event()).wait()
        return answer(request, "yes")

    server, trainer = RolloutCache(policy), RolloutCache(policy)
    for book in (server, trainer):
        numbers = [1, *order, *([5] if unheard and book is trainer else [])]
        for number in sorted(numbers):
            chat = ask(book, number, SAME if number == 1 else AGAIN)
            if number == 1:
                replies.setdefault(1, asyncio.Event()).set()
                await asyncio.wait_for(asyncio.shield(chat.done), PATIENCE)
        for number in numbers[1:]:
            replies.setdefault(number, asyncio.Event()).set()
            kept = book.rollout("r", 1, 0.0).samples["main"].asked[number]
            await asyncio.wait_for(asyncio.shield(kept.done), PATIENCE)
        replies.clear()
    held = server.rollout("r", 1, 0.0).samples["main"].assembler.segments()
    assert [segment.chats for segment in held] == [(1, 2), (3,), (4,)]
    done = RolloutOutcome(
        rollout_id="r",
        result_id="x",
        status=OutcomeStatus.COMPLETED,
        samples={"main": Sample(segments=held, trainable=True)},
    )
    _, recorded = trainer.complete(referring(done), 0.0)
    assert recorded.samples["main"].trainable, recorded.samples["main"].not_trainable_reason
    assert recorded.samples["main"].segments == held


# Prompts told in either form


async def test_a_prompt_may_be_given_as_a_prefix_and_the_rest():
    def policy(request):
        made = answer(request, "yes")
        prefix = 0 if request.known_ids is None else {2: len(request.known_ids), 3: 5}.get(request.chat_number, 0)
        return replace(made, prompt_ids=made.prompt_ids[prefix:], prompt_prefix=prefix)

    def whole(request):
        return answer(request, "yes")

    books = [RolloutCache(policy), RolloutCache(whole)]
    for number, messages in ((1, SAME), (2, AGAIN), (3, AGAIN), (4, [*AGAIN, AGAIN[1], USER])):
        asked = [ask(book, number, messages) for book in books]
        for each in asked:
            each.done.result()
        one, other = asked
        assert np.array_equal(one.prompt(), other.prompt())
        for parent_chat in (0, *range(1, number)):
            replies = [each.reply(parent_chat) for each in asked]
            for told in replies:
                tokens = books[0].rollout("r", 1, 0.0).samples["main"].assembler.tokens(parent_chat)
                again = np.concatenate([tokens[: told.prompt_prefix], told.prompt_ids])
                assert np.array_equal(again, other.prompt())
                assert parent_chat or not told.prompt_prefix
    held = [book.rollout("r", 1, 0.0).samples["main"].assembler.segments() for book in books]
    assert held[0] == held[1]


# Callbacks with deltas


async def test_a_callback_with_deltas(serve, train, monkeypatch):
    forms, forget = [], set()
    to_wire, chat = callbacks.chat_bytes, RolloutCache.chat

    def spied(request, **options):
        data = to_wire(request, **options)
        message = callbacks.chat_pb2.ChatRequest.FromString(data)
        forms.append((request.sample, request.chat_number, message.WhichOneof("history")))
        return data

    def forgetting(self, request, now):
        if request.parent_chat and not request.prefix_len and request.chat_number in forget:
            raise UnknownChat(request.sample, request.parent_chat)
        return chat(self, request, now)

    monkeypatch.setattr(callbacks, "chat_bytes", spied)
    monkeypatch.setattr(RolloutCache, "chat", forgetting)
    server, trainer = await serve(Branching()), await train(reply)
    recorded = {}
    async with RolloutClient(server.address) as client:
        for delta, forgotten in ((False, ()), (True, ()), (True, (2, 4))):
            forms.clear()
            forget.clear()
            forget.update(forgotten)
            told = replace(trainer.callback(), delta=delta)
            attempt = len(recorded) + 1
            await client.init(rollout_id="r", attempt=attempt, messages=[USER], callback=told)
            recorded[delta, forgotten] = replace(
                await trainer.outcome("r", PATIENCE, attempt=attempt), result_id="", attempt=1
            )
            form = {"full": not delta}
            assert ("main", 1, "full") in forms
            assert ("sample-2", 1, "full") in forms
            for number in (2, 3, 4, 5):
                tried = [form for sample, n, form in forms if (sample, n) == ("main", number)]
                assert tried == (["full"] if form["full"] else ["delta", *(["full"] if number in forgotten else [])])
    first, *others = recorded.values()
    for other in others:
        assert alike(other) == alike(first)


async def test_a_delta_on_an_unanswered_chat_is_unknown():
    pending = asyncio.get_running_loop().create_future()
    book = RolloutCache(lambda request: pending if request.chat_number == 1 else reply(request))
    ask(book, 1, SAME)
    for parent_chat in (1, 2, 7):
        with pytest.raises(UnknownChat):
            ask(book, 3, [USER], parent_chat=parent_chat)
    pending.set_result(reply(ChatRequest(rollout_id="r", messages=SAME)))
    await asyncio.sleep(0)
    known = ask(book, 3, [USER], parent_chat=1)
    known.done.result()
    with pytest.raises(CallError):
        ask(book, 3, [USER, USER], parent_chat=1)
    full = [*SAME, {"role": "assistant", "content": "main 1"}, USER]
    assert ask(book, 3, full) is known, "told in full it is the same chat"
    book.close()


class Unreadable:
    """A reply whose type cannot be asked for."""

    @property
    def __class__(self):
        raise RuntimeError("no type")


async def test_a_chat_whose_policy_call_could_not_begin_is_sampled_when_it_comes_again():
    replies = [Unreadable()]
    cache = RolloutCache(lambda request: replies.pop() if replies else reply(request))
    question = ChatRequest(rollout_id="r", chat_number=1, messages=[USER])
    with pytest.raises(RuntimeError, match="no type"):
        cache.chat(question, 0.0)
    chat = cache.chat(question, 0.0)
    assert chat.reply().message == reply(question).message


async def test_the_chats_of_a_rollout_that_ended_without_an_outcome_are_not_kept(tmp_path):
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def policy(request):
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    book = RolloutCache(policy, ledger)
    ask(book, 1, SAME)
    await asyncio.wait_for(asked.wait(), PATIENCE)
    book.end("r", 1)
    await asyncio.wait_for(stopped.wait(), PATIENCE)
    with pytest.raises(FailedPrecondition, match="rollout r has ended"):
        ask(book, 2, AGAIN)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as database:
        assert database.execute("SELECT count(*) FROM chat").fetchone() == (0,)


async def test_a_reply_after_the_outcome_does_not_begin_the_rollout_again_in_the_ledger(tmp_path):
    """A caller has given the rollout up, so its next attempt is reserved. A chat is being sampled meanwhile."""
    asked, may = asyncio.Event(), asyncio.Event()

    async def policy(request):
        asked.set()
        await may.wait()
        return reply(request)

    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    book, recorded = RolloutCache(policy, ledger), asyncio.Event()
    open_chat = ask(book, 1, SAME)
    await asyncio.wait_for(asked.wait(), PATIENCE)
    outcome = RolloutOutcome(rollout_id="r", attempt=1, status=OutcomeStatus.CANCELLED, result_id="x")
    with held_up(ledger):
        book.record(outcome, outcome_to_wire(outcome), lambda *_: recorded.set(), abandoned=True)
        may.set()
        await asyncio.wait_for(asyncio.wait({open_chat.done}), PATIENCE)
    await asyncio.wait_for(recorded.wait(), PATIENCE)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as database:
        assert database.execute("SELECT attempt, init, outcome FROM rollout").fetchall() == [(2, None, None)]
        assert database.execute("SELECT count(*) FROM chat").fetchone() == (0,)
