"""What is committed is read back, over a restart, too."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.journal.retention import SLICE
from osmosis_grpc.types import CompletionStatus, RolloutState, events
from osmosis_grpc.wire.rollout import completion_from_wire, completion_to_wire
from tests.storage.journals import CALLBACK, OWN, Kept, keeping
from tests.wire.test_event import COMPLETION, FIXTURES, SPARSE, told, without_sizes

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
    """What a journal gives back: an Ended refers to its chats, and an Accepted has no secrets."""
    if isinstance(kind, events.Accepted):
        init = told(kind).init
        return events.Accepted(replace(init, request=replace(init.request, api_key=None, server_url="")), [])
    if isinstance(kind, events.Ended):
        return events.Ended(completion_from_wire(completion_to_wire(kind.completion, refer=True), "completion"))
    return told(kind)


def check(kept, written):
    """Everything is there, by rollout and by position."""
    count = 0
    for key, kinds in written.items():
        stored = kept.trajectory(*key)
        assert [event.number for event in stored] == list(range(1, len(kinds) + 1))
        assert [without_sizes(event.kind) for event in stored] == [without_sizes(read(kind)) for kind in kinds]
        count += len(kinds)
    found = kept.everything(limit=7)
    assert [position for position, _ in found] == list(range(1, kept.store.last_position + 1))
    found = [event for _, event in found]
    assert len(found) == count
    for key in written:
        assert [e for e in found if (e.rollout_id, e.attempt) == key] == kept.trajectory(*key)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_whatever_is_committed_is_read_back(steps):
    async def main(folder):
        kept, stage = Kept(folder), {}
        for number, step in steps:
            name, attempt = f"r{number // 2}", 1 + number % 2
            if step == "commit":
                await kept.commit()
                continue
            if number not in stage:
                kept.accept(name, attempt, callback=CALLBACK, **OWN)
                stage[number] = "live"
            if step == "deliver" and stage[number] == "ended":
                kept.deliver(name, attempt)
                stage[number] = "settled"
            elif stage[number] == "live" and step == "end":
                kept.append(events.Ended(COMPLETION), name, attempt)
                stage[number] = "ended"
            elif stage[number] == "live" and not isinstance(step, str):
                kept.append(step, name, attempt)
        await kept.all_told()
        assert kept.told == [(token, True) for token in range(1, kept.tokens + 1)]
        check(kept, kept.written)
        last = kept.store.last_position
        kept.store.close()
        async with keeping(folder) as again:
            assert again.store.last_position == last
            check(again, kept.written)
            open_ = again.store.unsettled()
            assert len(open_) == sum(s != "settled" for s in stage.values())
            check(again, kept.written)
            for entry in open_:
                request = entry.init.request
                assert entry.last_number == len(kept.written[request.rollout_id, request.attempt])
                assert entry.undelivered == (entry.completion is not None)
                assert entry.completion in (None, read(events.Ended(COMPLETION)).completion)
                assert entry.init.callback == CALLBACK

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


async def test_a_rollout_goes_on_after_a_restart(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        kept.append(events.Started())
        kept.accept("r2")
        kept.end("r2")
        await kept.all_told()
    async with keeping(tmp_path) as kept:
        one, two = kept.store.unsettled()
        assert (one.state, one.undelivered, one.completion) == (RolloutState.ACCEPTED, False, None)
        assert (two.state, two.undelivered, two.completion.result_id) == (RolloutState.COMPLETED, True, "x")
        kept.numbers = {("r1", 1): one.last_number, ("r2", 1): two.last_number}
        kept.append(events.Resumed(2))
        kept.end()
        kept.deliver()
        kept.deliver("r2")
        await kept.all_told()
        assert [type(kind).__name__ for kind in kept.kinds()] == [
            "Accepted",
            "Started",
            "Resumed",
            "Ended",
            "Delivered",
        ]
    async with keeping(tmp_path) as kept:
        assert kept.store.unsettled() == []
        assert [event.number for event in kept.trajectory()] == [1, 2, 3, 4, 5]
        assert [event.number for event in kept.trajectory("r2")] == [1, 2, 3]
        (entry,) = kept.store.find("r1")
        assert (entry.settled, entry.undelivered, entry.last_number, entry.end_time) == (True, False, 5, 2000.0)


async def test_find_named_and_entries(tmp_path):
    async with keeping(tmp_path) as kept:
        for number in range(5):
            kept.accept(f"r{number}", owner="me" if number % 2 == 0 else "you", idempotency_key=f"k{number}")
        kept.accept("r2", 2)
        kept.end("r0")
        kept.deliver("r0")
        await kept.all_told()
    for _ in range(2):
        async with keeping(tmp_path) as kept:
            store = kept.store
            assert store.last_sequence == 6
            assert [entry.init.request.attempt for entry in store.find("r2")] == [1, 2]
            assert store.find("r9") == []
            assert store.find("r0")[0].completion.result_id == "x"
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
            assert all(entry.completion is None for entry in mine)


async def test_what_finds_is_not_what_it_was_before_an_event(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        await kept.all_told()
        assert kept.store.find("r1")[0].state is RolloutState.ACCEPTED
        kept.end()
        await kept.all_told()
        assert kept.store.find("r1")[0].undelivered
        kept.deliver()
        await kept.all_told()
        assert kept.store.find("r1")[0].settled


async def test_tombstones(tmp_path):
    clock = Ticks()
    async with keeping(tmp_path, monotonic=clock) as kept:
        kept.store.add_tombstone("me", "r1", 3, 100.0)
        kept.store.add_tombstone("me", "r2", 1, 100.0)
        kept.store.add_tombstone("you", "r1", 1, 10.0)
        clock.now += 20.0
        await kept.commit()
    async with keeping(tmp_path, monotonic=clock) as kept:
        assert kept.store.tombstones() == [("me", "r1", 3, 80.0), ("me", "r2", 1, 80.0)]
        kept.store.add_tombstone("me", "r2", 1, 0.0)
        kept.store.add_tombstone("me", "r1", 4, 100.0)
        await kept.commit()
    async with keeping(tmp_path, monotonic=clock) as kept:
        assert kept.store.tombstones() == [("me", "r1", 4, 100.0)]
        clock.now += 101.0
        kept.store.sweep()
        await kept.commit()
        assert kept.store.reads.execute("SELECT count(*) FROM tombstones").fetchone() == (0,)


async def test_a_rollout_is_repointed(tmp_path):
    async with keeping(tmp_path) as kept:
        entry = kept.accept(callback=CALLBACK)
        await kept.all_told()
        other = replace(CALLBACK, target="127.0.0.1:10", credential="another", state=b"one")
        kept.store.repoint(replace(entry, init=replace(entry.init, callback=other)))
        await kept.commit()
    async with keeping(tmp_path) as kept:
        (entry,) = kept.store.unsettled()
        assert entry.init.callback == other


async def test_forget(tmp_path):
    async with keeping(tmp_path) as kept:
        for name in ("r1", "r2"):
            kept.accept(name)
            kept.end(name)
            kept.deliver(name)
        await kept.all_told()
        kept.store.forget("r1", 1)
        assert kept.store.forgotten_position == 3
        await kept.commit()
        assert (kept.store.find("r1"), kept.trajectory("r1")) == ([], [])
        assert len(kept.trajectory("r2")) == 3
        kept.store.forget("r9", 1)
    async with keeping(tmp_path) as kept:
        assert kept.store.forgotten_position == 3
        assert [event.rollout_id for _, event in kept.everything()] == ["r2"] * 3


async def test_positions_and_sequences_never_come_again(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        kept.end()
        kept.deliver()
        await kept.all_told()
        kept.store.forget("r1", 1)
        await kept.commit()
    async with keeping(tmp_path) as kept:
        assert (kept.store.last_position, kept.store.last_sequence) == (3, 1)
        assert kept.accept("r1").sequence == 2
        await kept.all_told()
        assert kept.store.last_position == 4


async def test_sweep_drops_what_is_settled_and_old(tmp_path):
    clock = Ticks()
    async with keeping(tmp_path, record_ttl=100.0, monotonic=clock) as kept:
        for name in ("old", "undelivered", "live", "new"):
            kept.accept(name)
        kept.end("old")
        kept.end("undelivered")
        clock.now += 50.0
        kept.end("new")
        kept.deliver("old")
        kept.deliver("new")
        await kept.all_told()
        clock.now += 51.0
        kept.store.sweep()
        kept.store.sweep()  # again, before it is committed
        await kept.commit()
        assert [name for name in ("old", "new", "undelivered", "live") if kept.store.find(name)] == [
            "new",
            "undelivered",
            "live",
        ]
        kept.deliver("undelivered")
        await kept.all_told()
        kept.store.sweep()
        await kept.commit()
        assert not kept.store.find("undelivered")


async def test_x01_one_sweep_drops_all_that_is_overdue(tmp_path):
    """However much that is: slice after slice, and other commits go between them."""
    clock = Ticks()
    async with keeping(tmp_path, record_ttl=100.0, monotonic=clock) as kept:
        for number in range(3 * SLICE + 1):
            settle(kept, f"r{number}")
        await kept.all_told()
        clock.now += 101.0
        settle(kept, "new")
        kept.store.sweep()
        await kept.until(lambda: listed(kept) == ["new"])


async def test_x01_a_budget_holds_without_a_sweep_and_before_the_ttl(tmp_path):
    """The oldest settled rollouts go as soon as a commit brings the file above it; what is not settled stays."""
    budget = 1024 * 1024
    async with keeping(tmp_path, record_ttl=1e9, budget=budget) as kept:
        for number in range(4):
            kept.accept(f"u{number}")
        for number in range(60):
            settle(kept, f"r{number}", "x" * 100_000)
            await kept.all_told()
        await kept.until(lambda: in_use(kept) <= budget)
        names = listed(kept)
        assert names == [*(f"u{n}" for n in range(4)), *(f"r{n}" for n in range(60 - len(names) + 4, 60))]
        assert len(names) > 4 + 6
        assert kept.store.has_room("me")


async def test_x01_only_what_is_not_settled_fills_the_budget(tmp_path):
    budget = 1024 * 1024
    async with keeping(tmp_path, record_ttl=1e9, budget=budget) as kept:
        for number in range(4):
            settle(kept, f"r{number}", "x" * 200_000)
        await kept.all_told()
        for number in range(6):
            assert kept.store.has_room("me")
            kept.accept(f"u{number}")
            kept.append(events.Logged("x" * 200_000), f"u{number}")
            kept.end(f"u{number}")
        await kept.until(lambda: listed(kept) == [f"u{n}" for n in range(6)])
        assert not kept.store.has_room("me")
    async with keeping(tmp_path, budget=budget) as kept:
        assert len(kept.store.unsettled()) == 6
        assert not kept.store.has_room("me")
        kept.numbers = {(f"u{n}", 1): 3 for n in range(6)}
        for number in range(6):
            kept.deliver(f"u{number}")
        await kept.all_told()
        assert kept.store.has_room("me")


async def test_x01_rows_that_are_read_while_they_are_deleted_are_gone(tmp_path):
    """A reader gets what there is, and no error, whatever is dropped between two of its statements."""
    async with keeping(tmp_path, record_ttl=1e9, budget=1024 * 1024) as kept:
        for number in range(300):
            settle(kept, f"r{number}", "x" * 30_000)
            if not number % 20:
                await kept.store.entries("me", 0, 99)
            for other in (number - 100, number - 30, number - 20):
                kept.store.find(f"r{other}")
                kept.store.events(f"r{other}", 1, 0, 10)
        await kept.all_told()
        assert not kept.store.find("r0")
        assert kept.store.find("r299")


async def test_x02_the_file_shrinks_to_what_is_in_use(tmp_path):
    """All of it, the WAL too, once nothing is written for a moment."""
    clock = Ticks()
    async with keeping(tmp_path, record_ttl=100.0, monotonic=clock) as kept:
        for number in range(100):
            settle(kept, f"r{number}", "x" * 100_000)
        await kept.all_told()
        assert on_disk(tmp_path) > 10_000_000
        clock.now += 101.0
        kept.store.sweep()
        await kept.until(lambda: on_disk(tmp_path) < 200_000)
        assert in_use(kept) == (tmp_path / "journal.db").stat().st_size
        settle(kept, "more")
        await kept.all_told()


class Ticks:
    """A monotonic clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def settle(kept, name, text="x"):
    """A rollout from its Init to its delivery."""
    kept.accept(name)
    kept.append(events.Logged(text), name)
    kept.end(name)
    kept.deliver(name)


def listed(kept):
    """The ids of all rollouts, in order of acceptance."""
    rows = kept.store.reads.execute("SELECT rollout_id FROM rollouts ORDER BY sequence")
    return [name for (name,) in rows.fetchall()]


def in_use(kept):
    """Bytes of the database that are no free pages."""
    pages, free, size = (
        kept.store.reads.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def on_disk(folder):
    """Bytes of the database's files."""
    return sum(path.stat().st_size for path in folder.glob("journal.db*"))


async def test_a_superseded_rollout_is_settled_with_its_end(tmp_path):
    """And nothing else is, whatever its agent calls its end."""
    async with keeping(tmp_path) as kept:
        kept.accept("r1")
        kept.end("r1", status=CompletionStatus.CANCELLED, finish_reason="superseded")
        kept.accept("r2")
        kept.end("r2", finish_reason="superseded")
        await kept.all_told()
        assert (kept.store.find("r1")[0].settled, kept.store.find("r2")[0].settled) == (True, False)
        kept.deliver("r2")
        await kept.all_told()
        assert kept.store.find("r2")[0].settled


async def test_others_read_while_one_writes(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept(callback=CALLBACK)
        kept.append(events.Started())
        await kept.all_told()
        reader = Reader.look(tmp_path)
        kept.append(events.Logged("later"))
        await kept.all_told()
        (entry,) = reader.find("r1")
        assert entry.init.callback.credential == ""
        assert [event.number for event in reader.trajectory("r1", 1)] == [1, 2]
        assert reader.newest(5) == ["r1"]
        reader.close()
        reader = Reader.look(tmp_path)
        assert [event.number for event in reader.trajectory("r1", 1)] == [1, 2, 3]
        assert list(reader.trajectory("r1", 2)) == []
        reader.close()


async def test_much_is_read_in_parts(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        for _ in range(12):
            kept.append(events.Logged("x" * 250_000))
        await kept.all_told()
        assert 1 < len(kept.store.events("r1", 1, 0, 100)) < 8
        assert 1 < len(kept.store.all_events("me", 0, 100)[0]) < 8
        assert len(kept.trajectory()) == 12 + 1
        reader = Reader.look(tmp_path)
        assert len(list(reader.trajectory("r1", 1))) == 12 + 1
        reader.close()
