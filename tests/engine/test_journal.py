"""An engine with a journal: answers come after their commit, and the next process continues.

A crash is a copy of the folder at that moment, as a power cut leaves it.
"""

import asyncio
import itertools
import shutil
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

import osmosis_grpc.storage.journal.stored_rollouts
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.engine.recorded_chats import resolve_references
from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, NotFound, Unavailable
from osmosis_grpc.protocol.types import (
    CancelResult,
    ChatRef,
    FailureReason,
    Group,
    InitRequest,
    OutcomeStatus,
    RolloutFilter,
    RolloutMetrics,
    RolloutRequest,
    RolloutState,
    events,
)
from osmosis_grpc.storage import Reader, SqliteJournal
from osmosis_grpc.storage.journal import writer
from osmosis_grpc.storage.sqlite import committer
from osmosis_grpc.supervise import Supervisor
from tests.engine.conftest import FAST, Clock, Host, Trainer
from tests.waiting import until

COPIES = itertools.count()
PATIENCE = 20.0
"""A disk may take its time."""
TOOL = {"type": "function", "function": {"name": "add"}}


def user(content):
    return {"role": "user", "content": content}


class Talker(RolloutAgentLoop):
    """Asks so many chats, each about what was answered before."""

    name = "agent"
    replayable = True

    def __init__(self, chats=3, word="go on"):
        self.chats, self.word = chats, word
        self.runs = 0

    def get_tools(self, request):
        return [TOOL]

    async def run(self, ctx):
        self.runs += 1
        messages = [*ctx.request.messages, user("start")]
        for turn in range(self.chats):
            messages.append((await ctx.chat(messages, temperature=0.5)).message)
            messages.append(user(f"{self.word} {turn}"))
        return ctx.complete(messages, reward=1.0)


class Stubborn(Talker):
    """Not replayable."""

    replayable = False


class Until:
    """Answers chats below a number, and keeps the others waiting."""

    def __init__(self, number):
        self.chat_number = number

    async def __call__(self, request):
        if request.chat_number >= self.chat_number:
            await asyncio.Event().wait()
        return answer(request, f"reply {request.chat_number}")


class Host(Host):
    """And the folder of its journal."""

    folder = None

    def crash(self):
        """The folder as a power cut would leave it."""
        copy = self.folder.with_name(f"{self.folder.name}-{next(COPIES)}")
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns("*-shm", "lock"))
        return copy

    def on_disk(self, rollout_id="r1"):
        """What another process finds of a rollout."""
        reader = Reader.look(self.folder)
        try:
            return reader.find(rollout_id), list(reader.trajectory(rollout_id, 1))
        finally:
            reader.close()

    @property
    def in_memory(self):
        return sorted({record.rollout_id for record in self.engine.context.table.in_memory()})

    async def settled(self, record):
        async with asyncio.timeout(PATIENCE):
            async for _ in self.engine.log.follow(record, 0):
                pass
        return record.delivery.outcome

    async def until(self, condition):
        await until(condition)

    async def get(self, rollout_id="r1", attempt=0):
        """Return the result of GetRollout after the end."""
        await self.until(lambda: not self.engine.rollouts.get("me", rollout_id, attempt).live)
        record = self.engine.rollouts.get("me", rollout_id, attempt)
        await self.settled(record)
        return await self.engine.rollouts.info(self.engine.rollouts.get("me", rollout_id, attempt))

    def names(self, rollout_id="r1", attempt=1):
        return [type(event.kind).__name__ for event in self.engine.log.trajectory(rollout_id, attempt)]


@asynccontextmanager
async def keeping(folder, *agents, policy=None, ahead=0.0, clock=None, **config):
    """An engine on a folder; what it finds there goes on."""
    clock = clock or Clock()
    clock.ahead += ahead
    supervisor = Supervisor("the engine", system=clock)
    store = SqliteJournal(folder, supervisor=supervisor)
    try:
        async with Engine(agents, EngineConfig(**{**FAST, **config}), supervisor=supervisor, journal=store) as engine:
            host = Host(engine, clock, [])
            host.folder, host.trainer = folder, Trainer(policy or Until(99))
            engine.recovery.recover(lambda entry: host.trainer.peer)
            yield host
    finally:
        store.close()
        await asyncio.sleep(0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state"


async def crashed(folder, agent, until, *, pin_sampling=None, **fields):
    """A crash while a rollout waits for the reply to a chat."""
    async with keeping(folder, agent, policy=Until(until), pin_sampling=pin_sampling or {}) as h:
        record = await h.start(**fields)
        await h.until(lambda: record.state is RolloutState.RUNNING and len(h.trainer.chats) == until)
        await h.until(lambda: record.trail.last_event_number == record.trail.written)
        return h.crash()


def plain(outcome):
    """An outcome without what is only true in memory: shared beginnings, and times below a nanosecond."""
    samples = {name: replace(sample, begins=None) for name, sample in outcome.samples.items()}
    return replace(outcome, samples=samples, metrics=RolloutMetrics())


# Answers after the commit


async def test_an_init_is_answered_after_its_commit(folder):
    async with keeping(folder, Talker()) as h:
        asked = asyncio.ensure_future(h.init())
        await asyncio.sleep(0)
        assert not asked.done()
        assert h.on_disk() == ([], [])
        await asked
        (entry,), (first, *_) = h.on_disk()
        assert (entry.owner, first.event_number, type(first.kind)) == ("me", 1, events.Accepted)


async def test_an_end_is_shown_after_its_commit(folder):
    found = []
    async with keeping(folder, Talker()) as h:
        complete = h.trainer.complete

        async def look(outcome):
            kept = resolve_references(h.on_disk()[0][0].outcome, h.engine.log.trajectory)
            found.append((kept, h.engine.rollouts.get("me", "r1").state))
            return await complete(outcome)

        h.trainer.peer = Peer(h.trainer.chat, look)
        outcome = await h.run()
        ((kept, state),) = found
        assert plain(kept) == plain(outcome)
        assert state is RolloutState.COMPLETED


async def test_segments_whose_chats_the_journal_does_not_have_are_not_trained_on(folder):
    async with keeping(folder, Talker()) as h:
        h.trainer.peer = Peer(h.trainer.chat, h.trainer.complete, accepts_references=True)
        outcome = await h.run()
        assert outcome.samples["main"].segments[0].referred
        whole = resolve_references(outcome, h.engine.log.trajectory).samples["main"]
        assert whole.trainable
        assert len(whole.segments[0].logprobs) == whole.segments[0].sampled
        lost = resolve_references(outcome, lambda rollout_id, attempt: []).samples["main"]
        assert (lost.trainable, lost.segments) == (False, ())
        assert "does not have all of its chats" in lost.not_trainable_reason


# Over and delivered


async def test_memory_holds_nothing_that_is_over(folder):
    async with keeping(folder, Talker()) as h:
        for number in range(5):
            await h.run(f"r{number}")
        assert h.in_memory == []
        assert not h.engine.journal.open_rollouts.by_key
        assert h.engine.capacity().completed == 5


async def check_found(h, outcome):
    record, started = await h.init()
    assert (started, list(record.tools)) == (False, [TOOL])
    with pytest.raises(AlreadyExists):
        await h.init(digest=b"another body")
    with pytest.raises(NotFound):
        h.engine.rollouts.get("you", "r1")
    with pytest.raises(AlreadyExists):
        await h.init(owner="you")
    info = await h.engine.rollouts.info(h.engine.rollouts.get("me", "r1"))
    assert (info.state, info.undelivered) == (RolloutState.COMPLETED, False)
    assert plain(info.outcome) == plain(outcome)
    assert info.last_event_number == len(h.names())
    for after in (0, 3, info.last_event_number):
        received = [event.event_number async for event in h.engine.log.follow(h.engine.rollouts.get("me", "r1"), after)]
        assert received == list(range(after + 1, info.last_event_number + 1))
    assert h.engine.rollouts.was_asked("me", "r1", 1, "main", 1)
    assert h.engine.cancel("me", rollout_id="r1") == [CancelResult("r1", 1, "ALREADY_ENDED", RolloutState.COMPLETED)]
    assert info.last_event_number == len(h.names())
    assert h.in_memory == []


async def test_what_is_over_is_found_on_disk(folder):
    async with keeping(folder, Talker()) as h:
        outcome = await h.run()
        await check_found(h, outcome)
    async with keeping(folder, Talker()) as h:
        await check_found(h, outcome)
        assert h.trainer.outcomes == h.trainer.chats == []


async def test_lists_go_over_memory_and_disk_in_order_of_acceptance(folder):
    group = Group("g", 0, 2)
    async with keeping(folder, Talker(1), policy=lambda request: _slow(request)) as h:
        for number in range(7):
            await h.start(f"r{number}", group=group if number % 3 == 0 else None)
            if number % 2 == 0:
                await h.get(f"r{number}")
        await h.start("other", owner="you")
        assert h.in_memory == ["other", "r1", "r3", "r5"]
        pages, place = [], 0
        while True:
            rows, place = await h.engine.rollouts.page("me", place, 3)
            pages.append([row.rollout_id for row in rows])
            if not place:
                break
        assert pages == [["r0", "r1", "r2"], ["r3", "r4", "r5"], ["r6"]]
        rows, _ = await h.engine.rollouts.page("me", where=RolloutFilter(states=[RolloutState.RUNNING]))
        assert [row.rollout_id for row in rows] == ["r1", "r3", "r5"]
        assert [
            row.rollout_id for row in (await h.engine.rollouts.page("me", where=RolloutFilter(group_id="g")))[0]
        ] == ["r0", "r3", "r6"]
        _, place = await h.engine.rollouts.page("me", 0, 3)
        copy = h.crash()
    async with keeping(copy, Talker(1)) as h:
        assert [row.rollout_id for row in (await h.engine.rollouts.page("me", place))[0]] == ["r3", "r4", "r5", "r6"]


async def _slow(request):
    if request.rollout_id in ("r1", "r3", "r5", "other"):
        await asyncio.Event().wait()
    return await EchoPolicy()(request)


async def test_a_cursor_holds_over_a_restart(folder):
    async with keeping(folder, Talker(1)) as h:
        await h.run("r1")
        cursor = h.engine.log.cursor(h.engine.journal.last_position)
    async with keeping(folder, Talker(1)) as h:
        await h.run("r2")
        received = []
        async for _, event in h.engine.rollouts.follow_all("me", cursor, False):
            if event is not None:
                received.append((event.rollout_id, event.event_number))
            if len(received) == len(h.names("r2")):
                break
        assert received == [("r2", number) for number in range(1, len(received) + 1)]


# What is known without the process that knew it


async def test_a_cancel_that_came_too_early(folder):
    async with keeping(folder, Talker()) as h:
        assert h.engine.cancel("me", rollout_id="r1", attempt=2) == [CancelResult("r1")]
        await h.run("other")  # committed after it
        copy = h.crash()
    agent = Talker()
    async with keeping(copy, agent) as h:
        outcome = await h.run()
        assert outcome.status is OutcomeStatus.CANCELLED
        assert agent.runs == 0
        assert (await h.run(attempt=3)).status is OutcomeStatus.COMPLETED


async def test_an_idempotency_key(folder):
    async with keeping(folder, Talker()) as h:
        await h.run(idempotency_key="k")
    async with keeping(folder, Talker()) as h:
        with pytest.raises(AlreadyExists, match="names rollout r1"):
            await h.init("r2", idempotency_key="k")
        with pytest.raises(AlreadyExists, match="another idempotency_key"):
            await h.init("r1", attempt=2, idempotency_key="another")
        assert (await h.init("r1", idempotency_key="k"))[1] is False


async def test_a_higher_attempt_and_a_lower_one(folder):
    async with keeping(folder, Talker()) as h:
        await h.run(attempt=2)
    async with keeping(folder, Talker()) as h:
        with pytest.raises(Aborted):
            await h.init(attempt=1)
        outcome = await h.run(attempt=3)
        assert outcome.attempt == 3
        assert h.engine.rollouts.get("me", "r1").attempt == 3
        assert h.engine.rollouts.get("me", "r1", 2).state is RolloutState.COMPLETED


# After a crash


async def test_a_rollout_goes_on_where_it_was(folder):
    copy = await crashed(folder, Talker(), 3, agent_timeout=500.0)
    agent = Talker()
    async with keeping(copy, agent) as h:
        info = await h.get()
        assert (info.outcome.status, info.outcome.reward, agent.runs) == (OutcomeStatus.COMPLETED, 1.0, 1)
        assert [chat.chat_number for chat in h.trainer.chats] == [3]  # the others were answered before
        assert [m["content"] for m in info.outcome.messages] == [
            "start",
            "reply 1",
            "go on 0",
            "reply 2",
            "go on 1",
            "reply 3",
            "go on 2",
        ]
        stored = list(h.engine.log.trajectory("r1", 1))
        assert [event.event_number for event in stored] == list(range(1, len(stored) + 1))
        assert [name for name in h.names() if name in ("Started", "Resumed", "Ended", "Delivered")] == [
            "Started",
            "Resumed",
            "Started",
            "Ended",
            "Delivered",
        ]
        resumed = next(event for event in stored if isinstance(event.kind, events.Resumed))
        assert resumed.kind.previous_last_event == resumed.event_number - 1
        first = {
            e.kind.chat_number: e.event_number
            for e in stored[: resumed.event_number]
            if isinstance(e.kind, events.ChatAnswered)
        }
        then = [e.kind for e in stored[resumed.event_number :] if isinstance(e.kind, events.ChatAnswered)]
        assert [(kind.chat_number, kind.recorded_event) for kind in then] == [(1, first[1]), (2, first[2]), (3, 0)]
        (segment,) = info.outcome.samples["main"].segments
        assert segment.chats == (1, 2, 3)
        assert h.trainer.results("r1") == [info.outcome.result_id]
        assert h.in_memory == []
    async with keeping(copy, Talker()) as h:
        assert (await h.engine.rollouts.info(h.engine.rollouts.get("me", "r1"))).outcome == info.outcome


class Graded(Talker):
    """Has a reward for each chat, and asks a critic in a sample of its own."""

    async def run(self, ctx):
        ctx.add_sample("main", policy="solver")
        messages = [user("start")]
        for turn in range(1, 4):
            reply = await ctx.chat(messages)
            messages += [reply.message, user("go on")]
            ctx.set_reward(turn / 4, chat=reply.chat_number)
            ctx.set_reward(float(turn))
            ctx.set_reward(1.0, name=f"part {turn}")
        critic = ctx.add_sample("critic", policy="critic", parent=("main", 3), train=False)
        await ctx.chat([user("judge")], sample=critic)
        ctx.set_reward(-1.0, sample=critic)
        return ctx.complete(messages)


async def test_an_agent_that_runs_again_sets_the_same_rewards_and_samples(folder):
    async with keeping(folder.with_name("whole"), Graded()) as h:
        await h.start()
        whole = (await h.get()).outcome
        copy = h.crash()
    async with keeping(copy, Graded()) as h:  # what is over is read from the disk
        assert plain((await h.get()).outcome).samples == plain(whole).samples
    copy = await crashed(folder, Graded(), 3)
    async with keeping(copy, Graded()) as h:
        again = (await h.get()).outcome
        kinds = [event.kind for event in h.engine.log.trajectory("r1", 1)]
        assert [chat.policy for chat in h.trainer.chats] == ["solver", "critic"]  # the others were answered before
    assert plain(again).samples == plain(whole).samples
    assert (again.reward, again.reward_components) == (whole.reward, whole.reward_components)
    graded = [kind for kind in kinds if isinstance(kind, events.Graded)]
    assert len(graded) == 2 * 3 + 3 * 3 + 1
    assert again.samples["critic"].parent == ChatRef("main", 3)


class Swapped(Graded):
    """Names another policy than before."""

    async def run(self, ctx):
        ctx.add_sample("main", policy="another")
        await ctx.chat([user("start")])
        return ctx.complete([])


async def test_a_chat_of_another_policy_is_another_question(folder):
    copy = await crashed(folder, Graded(), 3)
    async with keeping(copy, Swapped()) as h:
        outcome = (await h.get()).outcome
        assert h.trainer.chats == []
    assert (outcome.status, outcome.failure.reason) == (OutcomeStatus.FAILED, FailureReason.REPLAY_DIVERGED)
    assert (outcome.reward, outcome.samples) == (None, {})


async def test_two_crashes_in_a_row(folder):
    copy = await crashed(folder, Talker(5), 2)
    async with keeping(copy, Talker(5), policy=Until(4)) as h:
        await h.until(lambda: [chat.chat_number for chat in h.trainer.chats] == [2, 3, 4])
        record = h.engine.rollouts.get("me", "r1")
        await h.until(lambda: record.trail.last_event_number == record.trail.written)
        again = h.crash()
    async with keeping(again, Talker(5)) as h:
        info = await h.get()
        assert info.outcome.status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [4, 5]
        assert h.names().count("Resumed") == 2
        recorded = [
            k.recorded_event
            for k in (e.kind for e in h.engine.log.trajectory("r1", 1))
            if isinstance(k, events.ChatAnswered)
        ]
        assert len(recorded) == 1 + 3 + 5
        assert recorded[-5] == recorded[1]  # the first event with it, over both crashes
        (segment,) = info.outcome.samples["main"].segments
        assert segment.chats == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("until", [1, 2, 3])
async def test_an_agent_that_asks_something_else(folder, until):
    """Its rollout ends, and what it asked instead is never sent."""
    copy = await crashed(folder, Talker(), until)
    other = Talker(word="stop") if until > 1 else Talker(word="go on")
    if until == 1:
        other.run = _other_start
    async with keeping(copy, other) as h:
        info = await h.get()
        failure = info.outcome.failure
        assert (info.outcome.status, info.outcome.finish_reason) == (OutcomeStatus.FAILED, "replay")
        assert (failure.boundary, failure.retryable) == ("server", True)
        number = max(1, min(until, 2))
        assert f"chat {number} of sample 'main'" in failure.message
        assert h.trainer.chats == []
        assert h.trainer.results("r1") == [info.outcome.result_id]


async def _other_start(ctx):
    return ctx.complete([(await ctx.chat([user("another start")])).message])


async def test_a_trainer_that_knows_the_chat_as_another(folder):
    copy = await crashed(folder, Talker(), 2)

    async def refuses(request):
        raise AlreadyExists("chat 2 was asked with another body")

    async with keeping(copy, Talker(), policy=refuses) as h:
        info = await h.get()
        assert (info.outcome.finish_reason, info.outcome.failure.boundary) == ("replay", "server")
        assert "chat 2 of sample 'main'" in info.outcome.failure.message
        assert len(h.trainer.chats) == 1


async def test_an_agent_loop_that_may_not_run_again(folder):
    copy = await crashed(folder, Stubborn(), 2)
    agent = Stubborn()
    async with keeping(copy, agent) as h:
        info = await h.get()
        assert (info.outcome.finish_reason, info.outcome.failure.retryable) == ("restart", True)
        assert info.outcome.failure.boundary == "server"
        assert (agent.runs, h.trainer.chats) == (0, [])
        metrics = info.outcome.metrics  # of the chat that was answered before the crash
        assert (metrics.num_llm_calls, metrics.response_tokens > 0, metrics.prompt_tokens > 0) == (1, True, True)


@pytest.mark.parametrize("began", [True, False])
async def test_an_agent_loop_that_is_gone(folder, began):
    class Other(Talker):
        name = "other"

    if began:
        copy = await crashed(folder, Talker(), 2)
    else:
        async with keeping(folder, Talker(), policy=Until(1), max_concurrent=1) as h:
            await h.start("first")
            await h.start("r1")
            await h.until(lambda: h.engine.capacity().queued == 1)
            copy = h.crash()
    async with keeping(copy, Other()) as h:
        info = await h.get()
        assert (info.outcome.finish_reason, info.outcome.failure.boundary) == ("restart", "server")
        assert "'agent'" in info.outcome.failure.message
        assert info.agent_loop == "agent"
        await h.until(lambda: h.in_memory == [])


async def test_what_waited_in_the_queue_starts_in_order(folder):
    async with keeping(folder, Talker(1), policy=Until(1), max_concurrent=1) as h:
        for number in range(3):
            await h.start(f"r{number}")
        copy = h.crash()
    async with keeping(copy, Talker(1), max_concurrent=1) as h:
        for number in range(3):
            assert (await h.get(f"r{number}")).outcome.status is OutcomeStatus.COMPLETED
        assert [chat.rollout_id for chat in h.trainer.chats] == ["r0", "r1", "r2"]
        assert "Resumed" in h.names("r0")
        assert "Resumed" not in h.names("r1")


async def test_an_undelivered_completion_is_delivered(folder):
    async with keeping(folder, Talker(1)) as h:
        h.trainer.answers = [Unavailable("away")] * 10_000
        record = await h.start()
        await h.until(lambda: record.delivery.undelivered)
        result = record.delivery.outcome
        copy = h.crash()
    agent = Talker(1)
    async with keeping(copy, agent) as h:
        h.trainer.answers = [Unavailable("away")] * 3
        assert h.engine.capacity().undelivered == 1
        info = await h.get()
        assert h.engine.capacity().undelivered == 0
        assert plain(info.outcome) == plain(result)
        assert [plain(outcome) for outcome in h.trainer.outcomes] == [plain(result)] * 4
        assert (agent.runs, h.names()[-1]) == (0, "Delivered")


@pytest.mark.parametrize("ahead", [3600.0, -5000.0])
async def test_a_restart_charges_no_time_in_which_no_server_ran(folder, ahead):
    """Neither a clock that jumps between two processes nor the time between them counts against agent_timeout."""
    copy = await crashed(folder, Talker(), 2, agent_timeout=60.0)
    async with keeping(copy, Talker(), ahead=ahead) as h:
        assert 30.0 < h.engine.rollouts.get("me", "r1").run.deadline - h.clock.monotonic() <= 60.0
        assert (await h.get()).outcome.status is OutcomeStatus.COMPLETED


async def test_what_a_process_has_used_of_the_time_is_charged(folder):
    async with keeping(folder, Talker(), policy=Until(2)) as h:
        await h.start(agent_timeout=60.0)
        await h.until(lambda: len(h.trainer.chats) == 2)
        h.clock.ahead = 40.0
        await h.start("later")  # events record how late it is
        await h.until(lambda: len(h.trainer.chats) == 4)
        await h.engine.log.flush()
        copy = h.crash()
    async with keeping(copy, Talker(), policy=Until(2)) as h:
        left = h.engine.rollouts.get("me", "r1").run.deadline - h.clock.monotonic()
        assert 10.0 < left <= 20.0


async def test_a_wall_clock_that_jumps_ages_nothing(folder):
    """Neither a settled rollout nor a cancel that waits for its Init is forgotten; with their time they are."""
    clock = WallClock()
    async with keeping(folder, Talker(1), policy=EchoPolicy(), clock=clock, record_ttl=3600.0) as h:
        await h.run("r1")
        h.engine.cancel("me", rollout_id="unknown")
        clock.wall = 7200.0
        await h.run("r2")
        await swept(h)
        assert not (await h.init("r1", trainer=h.trainer))[1]
    async with keeping(folder, Talker(1), policy=EchoPolicy(), clock=clock, record_ttl=3600.0) as h:
        await swept(h)
        assert not (await h.init("r1", trainer=h.trainer))[1]
        assert (await h.run("unknown")).status is OutcomeStatus.CANCELLED
        clock.ahead += 3700.0
        await h.until_listed()


async def dies(folder, *names):
    """A process that dies while rollouts wait for the reply to their first chat: what it leaves."""
    async with keeping(folder, Talker(), policy=Until(1)) as h:
        for name in names:
            await h.start(name)
        await h.until(lambda: len(h.trainer.chats) >= len(names))
        await h.engine.log.flush()
        return h.crash()


async def test_suspects_run_one_at_a_time_and_after_the_others(folder):
    """What ran when the process died, twice without a new reply, runs alone until it gets one."""
    copy = await dies(await dies(folder, "r1", "r2"), "r3")
    gate = {name: asyncio.Event() for name in ("r1", "r2", "r3")}

    async def policy(request):
        await gate[request.rollout_id].wait()
        return answer(request, f"reply {request.chat_number}")

    async with keeping(copy, Talker(1), policy=policy) as h:
        asked = lambda: [chat.rollout_id for chat in h.trainer.chats]  # noqa: E731
        for number, name in enumerate(("r3", "r1", "r2"), 1):
            await h.until(lambda n=number: len(asked()) == n)
            await asyncio.sleep(0.05)  # nothing else runs meanwhile
            assert asked()[-1] == name
            assert len(asked()) == number
            gate[name].set()
        for name in gate:
            assert (await h.get(name)).outcome.status is OutcomeStatus.COMPLETED


async def test_after_three_runs_without_a_new_reply_it_is_not_run_again(folder):
    copy = await dies(folder, "r1")
    for _ in range(3):
        copy = await dies(copy)
    async with keeping(copy, Talker(), policy=EchoPolicy()) as h:
        failure = (await h.get()).outcome.failure
        assert (failure.boundary, failure.reason) == ("agent", FailureReason.CRASHED_SERVER)
        assert h.trainer.chats == []


@pytest.mark.slow
async def test_servers_that_are_stopped_in_good_order_do_not_count(folder):
    copy = await dies(folder, "r1")
    for _ in range(5):
        async with keeping(copy, Talker(), policy=Until(1)) as h:
            await h.until(lambda h=h: h.trainer.chats)
    async with keeping(copy, Talker(), policy=EchoPolicy()) as h:
        assert (await h.get()).outcome.status is OutcomeStatus.COMPLETED


class WallClock(Clock):
    """A clock whose wall clock can differ from its monotonic one."""

    wall = 0.0

    def time(self):
        return super().time() + self.wall


async def swept(host):
    """Wait until the journal has been swept, and what that deletes is committed."""
    store, sweeps = host.engine.journal, asyncio.Event()
    real = store.sweep

    def sweep():
        real()
        sweeps.set()

    store.sweep = sweep
    async with asyncio.timeout(PATIENCE):
        await sweeps.wait()
    store.sweep = real
    await host.engine.log.flush()


async def test_what_was_cancelled_before_the_crash_is_not_run_again(folder):
    class Deaf(Talker):
        async def run(self, ctx):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if closing.is_set():
                        raise

    closing = asyncio.Event()
    async with keeping(folder, Deaf(), stop_again_after=(0.2, 0.4)) as h:
        record = await h.start()
        await h.until(lambda: record.state is RolloutState.RUNNING)
        h.engine.cancel("me", rollout_id="r1", reason="enough")
        await h.until(lambda: "CancelAsked" in h.names())
        copy = h.crash()
        closing.set()
    agent = Talker()
    async with keeping(copy, agent) as h:
        info = await h.get()
        assert (info.outcome.status, agent.runs) == (OutcomeStatus.CANCELLED, 0)
        assert h.names().count("CancelAsked") == 1


async def test_an_attempt_that_was_being_superseded_is_not_run_again(folder):
    """The higher attempt was committed; the crash came before the lower one ended."""
    copy = await crashed(folder, Talker(), 2)
    async with keeping(copy, Talker(), policy=Until(2)) as h:
        await h.until(lambda: len(h.trainer.chats) == 1)
        asked = asyncio.ensure_future(h.init(attempt=2))
        await h.until(lambda: len(h.on_disk()[0]) == 2)
        # Both are there; only the commit of attempt 2 is certain by now.
        again = h.crash()
        await asked
    agent = Talker(1)
    async with keeping(again, agent) as h:
        assert (await h.get("r1", 2)).outcome.status is OutcomeStatus.COMPLETED
        info = await h.get("r1", 1)
        assert (info.state, info.outcome.finish_reason) == (RolloutState.CANCELLED, "superseded")
        assert h.engine.rollouts.get("me", "r1").attempt == 2
        assert [c.attempt for c in h.trainer.outcomes] == [2]
        await h.until(lambda: h.in_memory == [])


async def test_an_undelivered_result_of_a_superseded_attempt_is_dropped(folder):
    async with keeping(folder, Talker(1)) as h:
        h.trainer.answers = [Unavailable("away")] * 10_000
        record = await h.start()
        await h.until(lambda: record.delivery.undelivered)
        copy = h.crash()
    async with keeping(copy, Talker(1), policy=Until(1)) as h:
        h.trainer.answers = [Unavailable("away")] * 10_000
        await h.start(attempt=2)
        again = h.crash()
    reader = Reader.look(again)
    assert [entry.settled for entry in reader.find("r1")][1] is False
    reader.close()
    async with keeping(again, Talker(1)) as h:
        assert (await h.get("r1", 2)).outcome.status is OutcomeStatus.COMPLETED
        assert (await h.get("r1", 1)).undelivered is False
        assert {c.attempt for c in h.trainer.outcomes} == {2}
        await h.until(lambda: h.in_memory == [])
        assert h.engine.journal.unsettled() == []


async def test_a_result_that_is_superseded_while_it_is_committed(folder):
    """It is not delivered, and nothing is left to be done about it."""
    async with keeping(folder, Talker(1)) as h:
        record = await h.start()
        await h.until(lambda: record.state is RolloutState.REPORTING or not record.live)
        h.engine.runner.supersede(record)
        await h.settled(record)
        assert h.on_disk()[0][0].settled
        await h.until(lambda: h.in_memory == [])
        assert len(h.trainer.outcomes) <= 1


async def test_an_agent_may_call_its_end_what_it_likes(folder):
    class Odd(Talker):
        async def run(self, ctx):
            return ctx.complete([], finish_reason="superseded")

    async with keeping(folder, Odd()) as h:
        outcome = await h.run()
        assert h.trainer.outcomes == [outcome]
        assert h.on_disk()[0][0].settled


async def test_closing_leaves_what_runs_to_the_next_process(folder):
    async with keeping(folder, Talker(), policy=Until(2)) as h:
        await h.start()
        await h.until(lambda: len(h.trainer.chats) == 2)
    async with keeping(folder, Talker()) as h:
        assert (await h.get()).outcome.status is OutcomeStatus.COMPLETED
        assert [chat.chat_number for chat in h.trainer.chats] == [2, 3]


# A disk that fails


async def test_a_disk_that_fails_and_comes_back(folder, monkeypatch):
    failing = asyncio.Event()
    real = writer.execute

    def execute(database, statement, rows):
        pages = database.execute("PRAGMA page_count").fetchone()[0] if failing.is_set() else 2**30
        database.execute(f"PRAGMA max_page_count = {pages}")
        real(database, statement, rows)

    monkeypatch.setattr(writer, "execute", execute)
    monkeypatch.setattr(committer, "CHECK_EVERY", 3600.0)
    monkeypatch.setattr(writer, "RETRY", 3600.0)  # a retry writes little, which succeeds even on this disk
    go_on, filler = asyncio.Event(), "x" * 100_000

    async def policy(request):
        if request.chat_number == 2:
            await go_on.wait()
        return answer(request, filler)

    async with keeping(folder, Talker(3), policy=policy) as h:
        record = await h.start("running")
        await h.until(lambda: len(h.trainer.chats) == 2 and record.trail.last_event_number == record.trail.written)
        last = record.trail.last_event_number
        failing.set()
        with pytest.raises(Unavailable, match="the journal cannot be written") as refused:
            await h.init("new", messages=[user(filler)])
        assert refused.value.retry_after
        assert h.engine.journal.problem
        with pytest.raises(Unavailable) as refused:
            await h.init("newer")
        assert refused.value.retry_after
        go_on.set()
        await h.until(lambda: h.trainer.outcomes)
        await h.until(lambda: record.delivery.settled)
        (outcome,) = h.trainer.outcomes
        assert (outcome.status, len(outcome.samples["main"].segments)) == (OutcomeStatus.COMPLETED, 1)
        assert last <= record.trail.last_event_number < 12
        assert "Ended" not in h.names("running")
        monkeypatch.setattr(writer, "RETRY", 0.01)
        failing.clear()
        h.engine.journal.add_tombstone("me", "x", 1, 0.0)
        await h.until(lambda: not h.engine.journal.problem)
        assert (await h.run("newer")).status is OutcomeStatus.COMPLETED
        assert h.in_memory == ["running"]
        assert (
            await h.engine.rollouts.info(h.engine.rollouts.get("me", "running"))
        ).outcome.result_id == outcome.result_id
    async with keeping(folder, Talker(3), policy=policy) as h:  # the delivered rollout does not run again
        assert await ids(h) == ["newer"]
        assert (await h.run("running")).status is OutcomeStatus.COMPLETED


@pytest.mark.slow
async def test_a_trainer_is_asked_every_chat_once_over_many_crashes(folder):
    """It also gets one result only."""
    asked, copy = [], await crashed(folder, Talker(6), 1)
    for last in (2, 3, 4, 5, 6):
        async with keeping(copy, Talker(6), policy=Until(last)) as h:
            await h.until(lambda h=h, last=last: [c.chat_number for c in h.trainer.chats] == [last - 1, last])
            record = h.engine.rollouts.get("me", "r1")
            await h.until(lambda record=record: record.trail.last_event_number == record.trail.written)
            asked += [chat.chat_number for chat in h.trainer.chats[:-1]]
            copy = h.crash()
    async with keeping(copy, Talker(6)) as h:
        info = await h.get()
        assert [*asked, *(chat.chat_number for chat in h.trainer.chats)] == [1, 2, 3, 4, 5, 6]
        assert [plain(outcome) for outcome in h.trainer.outcomes] == [plain(info.outcome)]
        assert info.outcome.samples["main"].segments[0].chats == (1, 2, 3, 4, 5, 6)


@contextmanager
def unreadable(store):
    """Every read gives an error of SQLite's, and writing goes on."""
    store.reads.set_progress_handler(lambda: 1, 1)
    try:
        with patch.object(
            osmosis_grpc.storage.journal.stored_rollouts, "connect", side_effect=sqlite3.OperationalError("interrupted")
        ):
            yield
    finally:
        store.reads.set_progress_handler(None, 0)


CANNOT = "the journal cannot be read: interrupted"


async def test_a_journal_that_cannot_be_read_is_reported_and_stops_nothing(folder):
    asked = asyncio.Event()

    class Slow(Talker):
        async def get_tools(self, request):
            asked.set()
            await asyncio.sleep(0.1)  # get_tools takes a moment
            return []

    async with keeping(folder, Slow(2), policy=Until(2)) as h:
        engine = h.engine
        h.trainer.policy = EchoPolicy()
        await h.run("over")
        await h.until(lambda: not h.in_memory)
        h.trainer.policy = Until(2)
        running = await h.start("running")
        await h.until(lambda: len(h.trainer.chats) == 4)
        asked.clear()
        half = asyncio.create_task(h.init("half accepted"))
        await asked.wait()
        with unreadable(engine.journal):
            for ask in (
                lambda: engine.rollouts.get("me", "over"),
                lambda: engine.rollouts.get("me", "nobody"),
                lambda: engine.cancel("me", rollout_id="over"),
                lambda: h.names("over"),
                lambda: engine.acceptance.take_over("over", 1, owner="me", peer=h.trainer.peer),
            ):
                with pytest.raises(Unavailable, match=CANNOT) as refused:
                    ask()
                assert refused.value.retry_after
            with pytest.raises(Unavailable, match=CANNOT):
                await engine.rollouts.page("me")
            for more in ({}, {"idempotency_key": "k"}):
                with pytest.raises(Unavailable, match=CANNOT):
                    await h.init("new", **more)
            with pytest.raises(Unavailable, match=CANNOT):
                async for _ in engine.rollouts.follow_all("me", "", False):
                    pass
            also, _ = await half  # takes nothing from there
            assert engine.rollouts.was_asked("me", "over", 1, "main", 1)
            assert engine.rollouts.get("me", "running", 1) is running
            await asyncio.sleep(0.1)  # it is swept meanwhile
        assert (engine.capacity().running, running.tenant.open) == (2, 2)
        h.trainer.policy = EchoPolicy()
        assert (await h.run("new")).status is OutcomeStatus.COMPLETED
        assert engine.rollouts.get("me", "over").delivery.outcome is not None
        for record in (running, also):
            engine.cancel("me", rollout_id=record.rollout_id)
            await h.settled(record)
        h.clock.ahead = 10_000.0
        await h.until_listed()


async def test_a_completion_that_cannot_be_made_whole_is_delivered_later(folder):
    async with keeping(folder, Talker(2)) as h:
        keeper, h.trainer.policy = Trainer(EchoPolicy(), key="elsewhere"), EchoPolicy()
        keeper.answers = [Unavailable("not now", retry_after=3600.0)]
        init = InitRequest(request=RolloutRequest(rollout_id="r1", messages=[]), digest=b"d")
        refers = replace(keeper.peer, has_tokens=True, accepts_references=True)
        record, _ = await h.engine.init(init, owner="me", peer=refers)
        await h.until(lambda: keeper.outcomes)
        # Re-pointed: it is delivered there when others may run.
        h.engine.acceptance.begin(init, owner="me", peer=h.trainer.peer)
        with unreadable(h.engine.journal):
            await asyncio.sleep(0.1)  # get_tools takes a moment
            assert not h.trainer.outcomes
        await h.settled(record)
        (outcome,) = h.trainer.outcomes
        assert outcome.result_id == record.delivery.outcome.result_id
        assert len(outcome.messages) == 5


class Late(sqlite3.Connection):
    """Commits, and reports the commit of an acceptance as failed."""

    failing = False

    def execute(self, statement, *values):
        done = super().execute(statement, *values)
        if statement == "COMMIT" and self.failing and self.total_changes:  # of a connection that writes
            raise sqlite3.OperationalError("the disk did not answer in time")
        return done


async def test_an_acceptance_whose_commit_is_reported_as_failed_is_unknown(folder, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: connect(*args, **named, factory=Late))
    monkeypatch.setattr(writer, "RETRY", 0.01)
    async with keeping(folder, Talker(1)) as h:
        await h.run("before")
        Late.failing = True
        try:
            for _ in range(5):  # the row of the first try may be in the file when the next try comes
                with pytest.raises(Unavailable, match="cannot be written"):
                    await h.init()
                assert await ids(h) == ["before"]
        finally:
            Late.failing = False
        await h.until(lambda: not h.engine.journal.problem)
        assert (await h.run()).status is OutcomeStatus.COMPLETED
        assert await ids(h) == ["before", "r1"]


async def ids(h):
    return [row.rollout_id for row in (await h.engine.rollouts.page("me"))[0]]
