"""Annotations in the journals. They are events that may follow the end of a rollout."""

from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.protocol.types import Annotation, events
from tests.storage.disk import Disk
from tests.storage.journals import opened


def note(name):
    return events.Annotated(Annotation(id=name, note="x" * 100))


def ids(journal, rollout_id="r1", attempt=1):
    return [(event.event_number, event.kind.annotation.id) for event in journal.annotations(rollout_id, attempt)]


@asynccontextmanager
async def settled(folder, **options):
    """Yields the user of a journal with a settled rollout of 3 events."""
    async with opened(folder, **options) as user:
        user.accept()
        user.end()
        user.deliver()
        await user.all_reported()
        yield user


async def test_a_settled_rollout_gets_events_and_keeps_them_over_a_restart(tmp_path):
    async with settled(tmp_path) as user:
        for name in ("one", "two"):
            user.append(note(name))
        assert ids(user.journal) == [], "they are not committed yet"
        await user.all_reported()
        assert ids(user.journal) == [(4, "one"), (5, "two")]
        assert [event.event_number for event in user.journal.events("r1", 1, 0, 10)] == [1, 2, 3, 4, 5]
        (entry,) = user.journal.find("r1")
        assert (entry.settled, entry.last_event_number, entry.damage) == (True, 5, "")
    async with opened(tmp_path) as user:
        assert ids(user.journal) == [(4, "one"), (5, "two")]
        (entry,) = user.journal.find("r1")
        assert (entry.settled, entry.last_event_number, entry.damage) == (True, 5, "")
        assert list(user.journal.unsettled()) == []
        user.numbers["r1", 1] = 5
        user.append(note("three"))
        await user.all_reported()
        assert ids(user.journal)[-1] == (6, "three")


@pytest.mark.parametrize("order", ["before", "after"])
async def test_an_annotation_in_the_batch_of_the_delivery(tmp_path, order):
    async with opened(tmp_path) as user:
        user.accept()
        await user.all_reported()
        user.end()
        if order == "before":
            user.append(note("n"))
        user.deliver()
        if order == "after":
            user.append(note("n"))
        user.append(note("m"))
        await user.all_reported()
        (entry,) = user.journal.find("r1")
        assert (entry.settled, entry.last_event_number, entry.damage) == (True, 5, "")
        assert [name for _, name in ids(user.journal)] == ["n", "m"]


async def test_an_annotation_of_an_undelivered_outcome_survives_a_restart(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        user.end()
        await user.all_reported()
        user.append(note("n"))
        await user.all_reported()
    async with opened(tmp_path) as user:
        (entry,) = user.journal.unsettled()
        assert (entry.damage, entry.last_event_number, entry.settled) == ("", 3, False)
        user.numbers["r1", 1] = 3
        user.deliver()
        await user.all_reported()
        assert ids(user.journal) == [(3, "n")]
        assert [type(event.kind) for event in user.journal.events("r1", 1, 2, 10)] == [
            events.Annotated,
            events.Delivered,
        ]


async def test_what_the_disk_refuses_is_not_there_and_the_rollout_is_whole(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    async with settled(tmp_path) as user:
        disk.failing = True
        token = user.append(note("lost"))
        await user.all_reported()
        assert user.reported[-1] == (token, False)
        disk.failing = False
        await user.until(lambda: not user.journal.problem)
        assert ids(user.journal) == []
    async with opened(tmp_path) as user:
        (entry,) = user.journal.find("r1")
        assert (entry.last_event_number, entry.damage) == (3, "")


async def test_a_sweep_and_an_annotation_at_once_leave_no_rows_behind(tmp_path):
    time = [0.0]
    async with settled(tmp_path, record_ttl=10.0, monotonic=lambda: time[0]) as user:
        time[0] = 100.0
        user.append(note("late"))
        user.journal.sweep()
        await user.all_reported()
        assert ids(user.journal) == [(4, "late")], "a rollout that gets an event is not dropped"
        user.journal.sweep()
        await user.until(lambda: not user.journal.find("r1"))
        await user.until(lambda: user.journal.reads.execute("SELECT count(*) FROM events").fetchone() == (0,))
