"""The SQLite journal: committed events are read back, also after a restart; old rollouts are dropped."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutState, events
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire
from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.journal.reader import SLICE
from tests.protocol.wire.test_event import COMPLETION, FIXTURES, SPARSE, told, without_sizes
from tests.storage.journals import CALLBACK, OWN, JournalUser, opened
from tests.waiting import until

LAST = (events.Ended, events.Delivered)
MIDDLE = [kind for kind in FIXTURES + SPARSE if not isinstance(kind, (events.Accepted, *LAST))]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
LOGGED = st.builds(events.Logged, st.text(), st.dictionaries(st.text(max_size=9), JSON, max_size=3))
KINDS = st.sampled_from(MIDDLE) | LOGGED
STEPS = st.lists(st.tuples(st.integers(0, 3), KINDS | st.sampled_from(["end", "deliver", "commit"])), max_size=40)


def read(kind):
    """Return the event that a journal returns: an Ended refers to its chats, and an Accepted has no credentials."""
    if isinstance(kind, events.Accepted):
        init = told(kind).init
        return events.Accepted(replace(init, request=replace(init.request, api_key=None, server_url="")), [])
    if isinstance(kind, events.Ended):
        return events.Ended(outcome_from_wire(outcome_to_wire(kind.outcome, refer=True), "outcome"))
    return told(kind)


def check(user, written):
    """Check that the journal returns every event, by rollout and by position."""
    count = 0
    for key, kinds in written.items():
        stored = user.trajectory(*key)
        assert [event.event_number for event in stored] == list(range(1, len(kinds) + 1))
        assert [without_sizes(event.kind) for event in stored] == [without_sizes(read(kind)) for kind in kinds]
        count += len(kinds)
    found = user.everything(limit=7)
    assert [position for position, _ in found] == list(range(1, user.journal.last_position + 1))
    found = [event for _, event in found]
    assert len(found) == count
    for key in written:
        assert [e for e in found if (e.rollout_id, e.attempt) == key] == user.trajectory(*key)


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS)
def test_committed_events_are_read_back(steps):
    async def main(folder):
        user, stage = JournalUser(folder), {}
        for number, step in steps:
            name, attempt = f"r{number // 2}", 1 + number % 2
            if step == "commit":
                await user.commit()
                continue
            if number not in stage:
                user.accept(name, attempt, callback=CALLBACK, **OWN)
                stage[number] = "live"
            if step == "deliver" and stage[number] == "ended":
                user.deliver(name, attempt)
                stage[number] = "settled"
            elif stage[number] == "live" and step == "end":
                user.append(events.Ended(COMPLETION), name, attempt)
                stage[number] = "ended"
            elif stage[number] == "live" and not isinstance(step, str):
                user.append(step, name, attempt)
        await user.all_reported()
        assert user.reported == [(token, True) for token in range(1, user.tokens + 1)]
        check(user, user.written)
        last = user.journal.last_position
        user.journal.close()
        async with opened(folder) as again:
            assert again.journal.last_position == last
            check(again, user.written)
            open_ = again.journal.unsettled()
            assert len(open_) == sum(s != "settled" for s in stage.values())
            check(again, user.written)
            for entry in open_:
                request = entry.init.request
                assert entry.last_event_number == len(user.written[request.rollout_id, request.attempt])
                assert entry.settled is False
                assert entry.outcome in (None, read(events.Ended(COMPLETION)).outcome)
                assert entry.init.callback == CALLBACK

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


async def test_a_rollout_goes_on_after_a_restart(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        user.append(events.Started())
        user.accept("r2")
        user.end("r2")
        await user.all_reported()
    async with opened(tmp_path) as user:
        one, two = user.journal.unsettled()
        assert (one.state, one.settled, one.outcome) == (RolloutState.ACCEPTED, False, None)
        assert (two.state, two.settled, two.outcome.result_id) == (RolloutState.COMPLETED, False, "x")
        user.numbers = {("r1", 1): one.last_event_number, ("r2", 1): two.last_event_number}
        user.append(events.Resumed(2))
        user.end()
        user.deliver()
        user.deliver("r2")
        await user.all_reported()
        assert [type(kind).__name__ for kind in user.kinds()] == [
            "Accepted",
            "Started",
            "Resumed",
            "Ended",
            "Delivered",
        ]
    async with opened(tmp_path) as user:
        assert user.journal.unsettled() == []
        assert [event.event_number for event in user.trajectory()] == [1, 2, 3, 4, 5]
        assert [event.event_number for event in user.trajectory("r2")] == [1, 2, 3]
        (entry,) = user.journal.find("r1")
        assert (entry.settled, entry.last_event_number, entry.end_time) == (True, 5, 2000.0)


async def test_find_find_by_key_and_entries(tmp_path):
    async with opened(tmp_path) as user:
        for number in range(5):
            user.accept(f"r{number}", owner="me" if number % 2 == 0 else "you", idempotency_key=f"k{number}")
        user.accept("r2", 2)
        user.end("r0")
        user.deliver("r0")
        await user.all_reported()
    for _ in range(2):
        async with opened(tmp_path) as user:
            store = user.journal
            assert store.last_sequence == 6
            assert [entry.init.request.attempt for entry in store.find("r2")] == [1, 2]
            assert store.find("r9") == []
            assert store.find("r0")[0].outcome.result_id == "x"
            assert (store.find_by_key("me", "k2"), store.find_by_key("you", "k2"), store.find_by_key("me", "k9")) == (
                "r2",
                "",
                "",
            )
            mine = await store.entries("me", 0, 10)
            assert [(entry.sequence, entry.init.request.rollout_id) for entry in mine] == [
                (1, "r0"),
                (3, "r2"),
                (5, "r4"),
                (6, "r2"),
            ]
            assert [entry.sequence for entry in (await store.entries("me", 1, 2))] == [3, 5]
            assert all(entry.outcome is None for entry in mine)


async def test_find_returns_the_state_after_the_last_event(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        await user.all_reported()
        assert user.journal.find("r1")[0].state is RolloutState.ACCEPTED
        user.end()
        await user.all_reported()
        assert not user.journal.find("r1")[0].settled
        user.deliver()
        await user.all_reported()
        assert user.journal.find("r1")[0].settled


async def test_tombstones(tmp_path):
    clock = Ticks()
    async with opened(tmp_path, monotonic=clock) as user:
        user.journal.add_tombstone("me", "r1", 3, 100.0)
        user.journal.add_tombstone("me", "r2", 1, 100.0)
        user.journal.add_tombstone("you", "r1", 1, 10.0)
        clock.now += 20.0
        await user.commit()
    async with opened(tmp_path, monotonic=clock) as user:
        assert user.journal.tombstones() == [("me", "r1", 3, 80.0), ("me", "r2", 1, 80.0)]
        user.journal.add_tombstone("me", "r2", 1, 0.0)
        user.journal.add_tombstone("me", "r1", 4, 100.0)
        await user.commit()
    async with opened(tmp_path, monotonic=clock) as user:
        assert user.journal.tombstones() == [("me", "r1", 4, 100.0)]
        clock.now += 101.0
        user.journal.sweep()
        await user.commit()
        assert user.journal.reads.execute("SELECT count(*) FROM tombstones").fetchone() == (0,)


async def test_a_rollout_is_repointed(tmp_path):
    async with opened(tmp_path) as user:
        entry = user.accept(callback=CALLBACK)
        await user.all_reported()
        other = replace(CALLBACK, target="127.0.0.1:10", credential="another", state=b"one")
        user.journal.repoint(replace(entry, init=replace(entry.init, callback=other)))
        await user.commit()
    async with opened(tmp_path) as user:
        (entry,) = user.journal.unsettled()
        assert entry.init.callback == other


async def test_forget(tmp_path):
    async with opened(tmp_path) as user:
        for name in ("r1", "r2"):
            user.accept(name)
            user.end(name)
            user.deliver(name)
        await user.all_reported()
        user.journal.forget("r1", 1)
        assert user.journal.forgotten_position == 3
        await user.commit()
        assert (user.journal.find("r1"), user.trajectory("r1")) == ([], [])
        assert len(user.trajectory("r2")) == 3
        user.journal.forget("r9", 1)
    async with opened(tmp_path) as user:
        assert user.journal.forgotten_position == 3
        assert [event.rollout_id for _, event in user.everything()] == ["r2"] * 3


async def test_positions_and_sequences_are_never_reused(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        user.end()
        user.deliver()
        await user.all_reported()
        user.journal.forget("r1", 1)
        await user.commit()
    async with opened(tmp_path) as user:
        assert (user.journal.last_position, user.journal.last_sequence) == (3, 1)
        assert user.accept("r1").sequence == 2
        await user.all_reported()
        assert user.journal.last_position == 4


async def test_sweep_drops_old_settled_rollouts(tmp_path):
    clock = Ticks()
    async with opened(tmp_path, record_ttl=100.0, monotonic=clock) as user:
        for name in ("old", "undelivered", "live", "new"):
            user.accept(name)
        user.end("old")
        user.end("undelivered")
        clock.now += 50.0
        user.end("new")
        user.deliver("old")
        user.deliver("new")
        await user.all_reported()
        clock.now += 51.0
        user.journal.sweep()
        user.journal.sweep()  # again, before it is committed
        await user.commit()
        assert [name for name in ("old", "new", "undelivered", "live") if user.journal.find(name)] == [
            "new",
            "undelivered",
            "live",
        ]
        user.deliver("undelivered")
        await user.all_reported()
        user.journal.sweep()
        await user.commit()
        assert not user.journal.find("undelivered")


async def test_one_sweep_drops_all_overdue_rollouts(tmp_path):
    """It drops slice after slice, with other commits between them."""
    clock = Ticks()
    async with opened(tmp_path, record_ttl=100.0, monotonic=clock) as user:
        for number in range(3 * SLICE + 1):
            settle(user, f"r{number}")
        await user.all_reported()
        clock.now += 101.0
        settle(user, "new")
        user.journal.sweep()
        await user.until(lambda: listed(user) == ["new"])


async def test_a_budget_holds_without_a_sweep_and_before_the_ttl(tmp_path):
    """The oldest settled rollouts are dropped as soon as a commit exceeds the budget; unsettled ones stay."""
    budget = 1024 * 1024
    async with opened(tmp_path, record_ttl=1e9, budget=budget) as user:
        for number in range(4):
            user.accept(f"u{number}")
        for number in range(60):
            settle(user, f"r{number}", "x" * 100_000)
            await user.all_reported()
        await user.until(lambda: in_use(user) <= budget)
        names = listed(user)
        assert names == [*(f"u{n}" for n in range(4)), *(f"r{n}" for n in range(60 - len(names) + 4, 60))]
        assert len(names) > 4 + 6
        assert user.journal.has_room("me")


async def test_only_unsettled_rollouts_fill_the_budget(tmp_path):
    budget = 1024 * 1024
    async with opened(tmp_path, record_ttl=1e9, budget=budget) as user:
        for number in range(4):
            settle(user, f"r{number}", "x" * 200_000)
        await user.all_reported()
        for number in range(6):
            assert user.journal.has_room("me")
            user.accept(f"u{number}")
            user.append(events.Logged("x" * 200_000), f"u{number}")
            user.end(f"u{number}")
        await user.until(lambda: listed(user) == [f"u{n}" for n in range(6)])
        assert not user.journal.has_room("me")
    async with opened(tmp_path, budget=budget) as user:
        assert len(user.journal.unsettled()) == 6
        assert not user.journal.has_room("me")
        user.numbers = {(f"u{n}", 1): 3 for n in range(6)}
        for number in range(6):
            user.deliver(f"u{number}")
        await user.all_reported()
        assert user.journal.has_room("me")


async def test_rows_deleted_during_a_read_are_gone(tmp_path):
    """A reader gets the remaining rows and no error if rows are dropped between two of its statements."""
    async with opened(tmp_path, record_ttl=1e9, budget=1024 * 1024) as user:
        for number in range(300):
            settle(user, f"r{number}", "x" * 30_000)
            if not number % 20:
                await user.journal.entries("me", 0, 99)
            for other in (number - 100, number - 30, number - 20):
                user.journal.find(f"r{other}")
                user.journal.events(f"r{other}", 1, 0, 10)
        await user.all_reported()
        await until(lambda: not user.journal.find("r0"))  # the thread measures the file after the last commit
        assert user.journal.find("r299")


async def test_the_file_shrinks_to_the_pages_in_use(tmp_path):
    """The file and its write-ahead log, after a moment without writes."""
    clock = Ticks()
    async with opened(tmp_path, record_ttl=100.0, monotonic=clock) as user:
        for number in range(100):
            settle(user, f"r{number}", "x" * 100_000)
        await user.all_reported()
        assert on_disk(tmp_path) > 10_000_000
        clock.now += 101.0
        user.journal.sweep()
        await user.until(lambda: on_disk(tmp_path) < 200_000)
        assert in_use(user) == (tmp_path / "journal.db").stat().st_size
        settle(user, "more")
        await user.all_reported()


class Ticks:
    """A monotonic clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def settle(user, name, text="x"):
    """Write a rollout from its Init to its delivery."""
    user.accept(name)
    user.append(events.Logged(text), name)
    user.end(name)
    user.deliver(name)


def listed(user):
    """Return the ids of all rollouts, in order of acceptance."""
    rows = user.journal.reads.execute("SELECT rollout_id FROM rollouts ORDER BY sequence")
    return [name for (name,) in rows.fetchall()]


def in_use(user):
    """Return the bytes of the pages in use."""
    pages, free, size = (
        user.journal.reads.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def on_disk(folder):
    """Return the bytes of the database's files."""
    return sum(path.stat().st_size for path in folder.glob("journal.db*"))


async def test_a_superseded_rollout_is_settled_with_its_end(tmp_path):
    """An outcome with an equal finish reason of the agent is not."""
    async with opened(tmp_path) as user:
        user.accept("r1")
        user.end("r1", status=OutcomeStatus.CANCELLED, finish_reason="superseded")
        user.accept("r2")
        user.end("r2", finish_reason="superseded")
        await user.all_reported()
        assert (user.journal.find("r1")[0].settled, user.journal.find("r2")[0].settled) == (True, False)
        user.deliver("r2")
        await user.all_reported()
        assert user.journal.find("r2")[0].settled


async def test_other_processes_read_while_one_writes(tmp_path):
    async with opened(tmp_path) as user:
        user.accept(callback=CALLBACK)
        user.append(events.Started())
        await user.all_reported()
        reader = Reader.look(tmp_path)
        user.append(events.Logged("later"))
        await user.all_reported()
        (entry,) = reader.find("r1")
        assert entry.init.callback.credential == ""
        assert [event.event_number for event in reader.trajectory("r1", 1)] == [1, 2]
        assert reader.newest(5) == ["r1"]
        reader.close()
        reader = Reader.look(tmp_path)
        assert [event.event_number for event in reader.trajectory("r1", 1)] == [1, 2, 3]
        assert list(reader.trajectory("r1", 2)) == []
        reader.close()


async def test_many_events_are_read_in_parts(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        for _ in range(12):
            user.append(events.Logged("x" * 250_000))
        await user.all_reported()
        assert 1 < len(user.journal.events("r1", 1, 0, 100)) < 8
        assert 1 < len(user.journal.all_events("me", 0, 100)[0]) < 8
        assert len(user.trajectory()) == 12 + 1
        reader = Reader.look(tmp_path)
        assert len(list(reader.trajectory("r1", 1))) == 12 + 1
        reader.close()
