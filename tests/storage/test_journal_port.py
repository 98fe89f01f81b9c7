"""The contract of the Journal port, over every backend. Another backend is one more line in BACKENDS."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from osmosis_grpc.protocol.types import (
    Annotation,
    Failure,
    Group,
    InitRequest,
    JournaledRollout,
    OutcomeStatus,
    OutcomeSummary,
    Receipt,
    RolloutFilter,
    RolloutMetrics,
    RolloutOutcome,
    RolloutRequest,
    RolloutState,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.storage import MemoryJournal, SqliteJournal
from tests.waiting import until

BACKENDS = {"memory": lambda folder: MemoryJournal(), "sqlite": SqliteJournal}


class Writer:
    """Appends events as an engine does, and collects what is committed."""

    def __init__(self, journal):
        self.journal = journal
        self.tokens = []
        """Tokens of committed events, in the order of their commits."""
        self.numbers = {}
        journal.on_commit = lambda tokens, ok: self.tokens.extend((token, ok) for token in tokens)

    def accept(self, rollout_id, *, owner="me", attempt=1, group=None, agent="x", time=1.0):
        request = RolloutRequest(rollout_id=rollout_id, attempt=attempt, messages=[], group=group)
        init, sequence = InitRequest(request=request, digest=b"d"), self.journal.last_sequence + 1
        entry = JournaledRollout(
            init=init, tools=(), owner=owner, attachment_id="a", sequence=sequence, agent_loop=agent, accept_time=time
        )
        self.append(rollout_id, events.Accepted(init), attempt=attempt, entry=entry)
        return entry

    def append(self, rollout_id, kind, *, attempt=1, entry=None):
        number = self.numbers[rollout_id] = self.numbers.get(rollout_id, 0) + 1
        event = TrajectoryEvent(rollout_id, attempt, number, 2.0, kind)
        if self.journal.append(event, 100, (rollout_id, number), entry):
            self.tokens.append(((rollout_id, number), True))

    def end(self, rollout_id, status=OutcomeStatus.COMPLETED, **more):
        more = {"result_id": "r", "finish_reason": "stop"} | more
        outcome = RolloutOutcome(rollout_id=rollout_id, attempt=1, status=status, **more)
        self.append(rollout_id, events.Ended(outcome))
        self.append(rollout_id, events.Delivered(Receipt.RECORDED, "", 1))

    async def committed(self):
        """Wait for the commit of everything that was appended."""
        done = []
        self.journal.barrier(done.append)
        await until(lambda: done)
        return done[0]

    def all_of(self, owner, limit=1000):
        found, position = [], 0
        while position < self.journal.last_position:
            batch, position = self.journal.all_events(owner, position, limit)
            found += [(event.rollout_id, event.event_number) for _, event in batch]
        return found


@pytest.fixture(params=BACKENDS)
def opening(request, tmp_path):
    @asynccontextmanager
    async def opened():
        journal = BACKENDS[request.param](tmp_path)
        try:
            yield Writer(journal)
        finally:
            journal.close()

    return opened


async def test_events_are_read_back_by_number_and_in_pages(opening):
    async with opening() as writer:
        writer.accept("r1")
        writer.append("r1", events.Started())
        writer.append("r1", events.Logged("hello"))
        assert await writer.committed()
        assert writer.tokens == [(("r1", number), True) for number in (1, 2, 3)]
        assert [event.event_number for event in writer.journal.events("r1", 1, 0, 10)] == [1, 2, 3]
        assert [event.event_number for event in writer.journal.events("r1", 1, 1, 1)] == [2]
        assert writer.journal.events("r1", 1, 2, 10)[0].kind == events.Logged("hello")
        assert list(writer.journal.events("r9", 1, 0, 10)) == []
        assert await writer.journal.read_apart(lambda read: [event.event_number for event in read("r1", 1)]) == [
            1,
            2,
            3,
        ]


async def test_all_events_are_those_of_one_owner_in_the_order_of_their_positions(opening):
    async with opening() as writer:
        for number in range(4):
            writer.accept(f"r{number}", owner=("me", "you")[number % 2])
        for _ in range(3):
            for number in range(4):
                writer.append(f"r{number}", events.Logged("x"))
        await writer.committed()
        assert writer.journal.last_position == 16
        mine = [(f"r{n}", number) for number in range(1, 5) for n in (0, 2)]
        for limit in (1, 3, 1000):
            assert writer.all_of("me", limit) == mine
        assert len(writer.all_of("you")) == 8
        assert writer.all_of("another") == []


async def test_entries_are_an_owners_rollouts_in_order_of_acceptance(opening):
    async with opening() as writer:
        for number in range(6):
            writer.accept(f"r{number}", owner=("me", "you")[number % 2], group=Group(f"g{number % 4}", 0, 1))
        writer.end("r0")
        await writer.committed()

        async def names(*args, **filters):
            where = RolloutFilter(**filters)
            return [entry.init.request.rollout_id for entry in await writer.journal.entries(*args, where)]

        assert await names("me", 0, 10) == ["r0", "r2", "r4"]
        assert await names("me", 1, 1) == ["r2"]
        assert await names("me", 5, 10) == []
        assert await names("me", 0, 10, group_id="g0") == ["r0", "r4"]
        assert await names("you", 0, 10, group_id="g0") == []
        assert {"r2", "r4"} <= set(await names("me", 0, 10, undelivered=True))


FILTERS = {
    "states": ({"states": [RolloutState.FAILED]}, ["r2", "r3"]),
    "several states": ({"states": [RolloutState.FAILED, RolloutState.CANCELLED]}, ["r2", "r3", "r4"]),
    "agent": ({"agent_loop": "b"}, ["r1", "r3"]),
    "group": ({"group_id": "g1"}, ["r1", "r3"]),
    "reason": ({"failure_reasons": ["AGENT_EXCEPTION"]}, ["r2"]),
    "reasons": ({"failure_reasons": ["AGENT_EXCEPTION", "TOOL_EXCEPTION"]}, ["r2", "r3"]),
    "least reward": ({"min_reward": 0.5}, ["r1"]),
    "most reward": ({"max_reward": 0.5}, ["r0"]),
    "after": ({"accepted_after": 102.0}, ["r2", "r3", "r4"]),
    "before": ({"accepted_before": 102.0}, ["r0", "r1"]),
    "two": ({"agent_loop": "b", "states": [RolloutState.COMPLETED]}, ["r1"]),
    "none": ({"agent_loop": "c"}, []),
    "unfinished": ({"states": [RolloutState.RUNNING]}, []),
    "undelivered": ({"undelivered": True}, []),
    "stalled": ({"stalled": 1.0}, []),
    "every": ({}, ["r0", "r1", "r2", "r3", "r4"]),
}


@pytest.mark.parametrize(("filters", "names"), FILTERS.values(), ids=FILTERS)
async def test_a_filter_selects_settled_rollouts(opening, filters, names):
    async with opening() as writer:
        for number in range(6):  # the last stays unfinished
            group, agent = Group(f"g{number % 2}"), "ab"[number % 2]
            writer.accept(f"r{number}", group=group, agent=agent, time=100.0 + number)
        writer.accept("theirs", owner="you", agent="b")
        writer.end("r0", reward=0.25)
        writer.end("r1", reward=1.0)
        writer.end("r2", OutcomeStatus.FAILED, failure=Failure("agent", "first\nsecond", reason="AGENT_EXCEPTION"))
        writer.end("r3", OutcomeStatus.FAILED, failure=Failure("tool", "", reason="TOOL_EXCEPTION"))
        writer.end("r4", OutcomeStatus.CANCELLED)
        await writer.committed()
        where = RolloutFilter(**filters)
        for newest_first in (False, True):
            found, after = [], 0
            while page := await writer.journal.entries("me", after, 2, where, newest_first=newest_first):
                found += [entry.init.request.rollout_id for entry in page]
                after = page[-1].sequence
            expected = names[::-1] if newest_first else names
            settled = [name for name in found if name != "r5"]
            assert settled == expected if writer.journal.durable else set(expected) <= set(settled)


async def test_an_entry_has_the_summary_of_its_outcome(opening):
    metrics = RolloutMetrics(num_llm_calls=3, prompt_tokens=300, response_tokens=77)
    async with opening() as writer:
        writer.accept("r0")
        writer.accept("r1")
        writer.end("r0", reward=0.0, metrics=metrics)
        failure = Failure("agent", "\n" + "x" * 300 + "\ny", reason="AGENT_ERROR")
        writer.end("r1", OutcomeStatus.FAILED, failure=failure, metrics=metrics, finish_reason="z" * 300)
        await writer.committed()
        entries = await writer.journal.entries("me", 0, 10)
        if writer.journal.durable:
            entries = [*entries, *writer.journal.find("r0"), *writer.journal.find("r1")]
            done = OutcomeSummary(reward=0.0, chats=3, prompt_tokens=300, response_tokens=77, finish_reason="stop")
            failed = replace(done, reward=None, failure_reason="AGENT_ERROR", failure_summary="x" * 200)
            failed = replace(failed, finish_reason="z" * 200)
            assert [entry.summary for entry in entries] == [done, failed, done, failed]
            assert {entry.outcome is None for entry in entries[:2]} == {True}


async def test_annotations_may_follow_the_end(opening):
    async with opening() as writer:
        writer.accept("r1")
        writer.append("r1", events.Annotated(Annotation(id="early")))
        writer.end("r1")
        await writer.committed()
        writer.append("r1", events.Annotated(Annotation(id="late")))
        assert await writer.committed()
        found = writer.journal.annotations("r1", 1)
        assert [(event.event_number, event.kind.annotation.id) for event in found] == [(2, "early"), (5, "late")]
        assert list(writer.journal.annotations("r9", 1)) == []
        assert writer.all_of("me")[-1] == ("r1", 5)
        writer.journal.forget("r1", 1)
        await writer.committed()
        assert list(writer.journal.annotations("r1", 1)) == []


async def test_a_forgotten_rollout_is_gone_and_positions_are_not_reused(opening):
    async with opening() as writer:
        writer.accept("r1")
        writer.end("r1")
        writer.accept("r2")
        await writer.committed()
        writer.journal.forget("r1", 1)
        await writer.committed()
        assert list(writer.journal.events("r1", 1, 0, 10)) == []
        assert writer.all_of("me") == [("r2", 1)]
        assert [entry.init.request.rollout_id for entry in await writer.journal.entries("me", 0, 10)] == ["r2"]
        assert (writer.journal.forgotten_position, writer.journal.last_position) == (3, 4)
        writer.journal.forget("r9", 1)
        assert writer.accept("r3").sequence == 3


async def test_live_rollouts_count_until_they_end(opening):
    async with opening() as writer:
        assert writer.journal.live_size == 0
        writer.accept("r1")
        assert writer.journal.live_size > 0
        writer.end("r1")
        await writer.committed()
        assert writer.journal.live_size == 0
        assert writer.journal.has_room("me")
        assert writer.journal.size("r1", 1) > 0


async def test_a_new_journal_has_nothing_to_recover(opening):
    async with opening() as writer:
        journal = writer.journal
        assert (list(journal.unsettled()), list(journal.tombstones()), journal.crashed) == ([], [], False)
        assert (journal.last_position, journal.forgotten_position, journal.last_sequence) == (0, 0, 0)
        assert (list(journal.find("r1")), journal.find_by_key("me", "k"), journal.version("v")) == ([], "", {})
        assert journal.problem == ""


async def test_a_durable_journal_finds_what_it_has_and_another_has_no_files(opening):
    async with opening() as writer:
        entry = writer.accept("r1")
        writer.end("r1", OutcomeStatus.FAILED)
        writer.journal.keep_version("v", {"agent.py": "1"})
        writer.journal.add_tombstone("me", "r7", 1, 60.0)
        await writer.committed()
        found = writer.journal.find("r1")
        assert [row.state.value for row in found] == (["FAILED"] if writer.journal.durable else [])
        assert bool(writer.journal.version("v")) is bool(writer.journal.tombstones()) is writer.journal.durable
        assert (writer.journal.figures() is not None) is writer.journal.durable
        assert 0.0 <= writer.journal.elapsed(entry) < 60.0
