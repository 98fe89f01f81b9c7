"""A start reads what SQLite can read of a damaged journal; a damaged rollout is reported and affects no other one."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import DataLoss
from osmosis_grpc.protocol.types import events
from osmosis_grpc.storage import JournalError, SqliteJournal
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.sqlite.file_schema import event_sum, row_sum
from tests.damaged import flip
from tests.storage.journals import CALLBACK, opened

TEXT = "a text that stands in the journal but once"


async def written(folder: Path, count: int = 6) -> str:
    """Rollouts r0, r1, ...: the first two settled, the next two ended, the others running. Returns the journal's id."""
    async with opened(folder) as user:
        for number in range(count):
            name = f"r{number}"
            user.accept(name)
            for step in range(20):
                user.append(events.Logged("step", {"text": f"{TEXT} {name} {step} " * 10}), name)
            if number < 4:
                user.end(name, result_id=name)
            if number < 2:
                user.deliver(name)
        await user.commit()
        return user.journal.journal_id


def change(folder: Path, statement: str, *values) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as database, database:
        assert database.execute(statement, values).rowcount == 1


def damages(folder_entries) -> dict[str, str]:
    return {entry.init.request.rollout_id: entry.damage for entry in folder_entries}


def test_checksums_differ_by_value_key_and_table():
    row = (1, 2, 3, 4.5, 6, b"body")
    assert event_sum(*row) == row_sum(b"events.checksum", row)
    others = [(2, 2, 3, 4.5, 6, b"body"), (1, 2, 3, 4.5, 6, b"bodz"), (1, 2, 3, 4.5, 7, b"body")]
    assert len({row_sum(b"events.checksum", one) for one in (row, *others)} | {row_sum(b"e", row)}) == 5
    assert row_sum(b"t", ("ab", "c")) != row_sum(b"t", ("a", "bc"))
    assert row_sum(b"t", (None,)) != row_sum(b"t", ("",)) != row_sum(b"t", (b"",))
    assert row_sum(b"t", (1, True)) == row_sum(b"t", (1.0, 1)), "as SQLite keeps them"


async def test_a_damaged_event_ends_only_its_rollout(tmp_path, caplog):
    await written(tmp_path)
    data = (tmp_path / "journal.db").read_bytes()
    flip(tmp_path / "journal.db", 8 * data.index(f"{TEXT} r4 7 ".encode() * 9))
    async with opened(tmp_path) as user:
        reports = damages(user.journal.unsettled())
        assert {name for name, damage in reports.items() if damage} == {"r4"}
        assert set(reports) == {"r2", "r3", "r4", "r5"}
        assert "event 9" in reports["r4"]
        assert "checksum" in reports["r4"]
        assert "rollout r4 attempt 1 is damaged" in caplog.text
        assert "DATA_LOSS" in caplog.text
        assert len(user.journal.events("r4", 1, 0, 100)) == 8
        with pytest.raises(DataLoss, match="does not match its checksum"):
            user.journal.events("r4", 1, 8, 100)
        found = [event.rollout_id for _, event in user.everything()]
        assert (found.count("r4"), found.count("r5")) == (20, 21), "who follows all events is not stopped by one"


async def test_a_rollout_under_another_key_is_detected(tmp_path):
    await written(tmp_path)
    change(tmp_path, "UPDATE events SET sequence = 6 WHERE sequence = 5 AND number = 21")
    async with opened(tmp_path) as user:
        reports = damages(user.journal.unsettled())
        assert {name for name, damage in reports.items() if damage} == {"r5"}, "r5 has a row without its checksum"


async def test_a_damaged_settled_rollout_has_failed(tmp_path, caplog):
    await written(tmp_path)
    data = (tmp_path / "journal.db").read_bytes()
    flip(tmp_path / "journal.db", 8 * data.index(f"{TEXT} r1 7 ".encode() * 9))
    async with opened(tmp_path) as user:
        user.journal.unsettled()
        (damaged,), (whole,) = user.journal.find("r1"), user.journal.find("r0")
        assert whole.outcome.status == "COMPLETED"
        assert not whole.damage
        assert damaged.state == damaged.outcome.status == "FAILED"
        assert (damaged.outcome.failure.reason, damaged.outcome.failure.boundary) == ("DATA_LOSS", "server")
        assert "rollout r1 attempt 1 is damaged" in caplog.text


@pytest.mark.parametrize(
    "column",
    [
        "state = 'FAILED'",
        "reward = 9.0",
        "ended = 3",
        "positions = x'00'",
        "deaths = 9",
        "owner = 'you'",
        "rollout_id = 'r9'",
        "attempt = 2",
    ],
)
async def test_a_damaged_row_ends_only_its_rollout(tmp_path, caplog, column):
    await written(tmp_path)
    change(tmp_path, f"UPDATE rollouts SET {column} WHERE rollout_id = 'r2'")
    async with opened(tmp_path) as user:
        assert "the row of rollout r2 attempt 1 is damaged" in caplog.text
        reports = damages(user.journal.unsettled())
        assert [name for name, damage in reports.items() if damage] == ["r2"]
        assert set(reports) == {"r2", "r3", "r4", "r5"}


@pytest.mark.parametrize("name", ["r0", "r2"])
async def test_a_rollout_that_looks_settled_is_reported(tmp_path, caplog, name):
    """The damage can be in the column that says whether its outcome was delivered."""
    await written(tmp_path)
    change(tmp_path, f"UPDATE rollouts SET settled = 1, size = 7 WHERE rollout_id = '{name}'")
    async with opened(tmp_path) as user:
        assert f"the row of rollout {name} attempt 1 is damaged" in caplog.text
        assert user.journal.find(name)[0].outcome.failure.reason == "DATA_LOSS"


async def test_missing_events_are_detected(tmp_path):
    await written(tmp_path)
    change(tmp_path, "DELETE FROM events WHERE sequence = 4 AND number = 22")
    change(tmp_path, "DELETE FROM events WHERE sequence = 5 AND number = 1")
    change(tmp_path, "DELETE FROM events WHERE sequence = 6 AND number = 9")
    async with opened(tmp_path) as user:
        reports = damages(user.journal.unsettled())
        assert {name for name, damage in reports.items() if damage} == {"r3", "r4", "r5"}


async def test_damaged_facts_and_tombstones(tmp_path, caplog):
    journal_id = await written(tmp_path)
    async with opened(tmp_path) as user:
        user.journal.add_tombstone("me", "soon", 1, 1000.0)
        user.journal.add_tombstone("me", "later", 1, 1000.0)
        await user.commit()
        last = user.journal.last_position
    change(tmp_path, "UPDATE facts SET value = 'x' WHERE name = 'journal_id'")
    change(tmp_path, "UPDATE facts SET value = 0.5 WHERE name = 'forgotten_position'")
    change(tmp_path, "UPDATE tombstones SET attempt = 2 WHERE rollout_id = 'soon'")
    async with opened(tmp_path) as user:
        assert user.journal.journal_id == journal_id
        assert user.journal.forgotten_position == last, "earlier cursors are too old"
        assert [row[1] for row in user.journal.tombstones()] == ["later"]
        assert "the cancel of rollout soon is damaged" in caplog.text


@pytest.mark.parametrize("at", [0, 18, 24, 32, 36, 47, 52, 59, 63, 67, 71])
async def test_a_file_with_a_damaged_header_is_read_or_refused(tmp_path, at):
    journal_id = await written(tmp_path)
    flip(tmp_path / "journal.db", 8 * at)
    before = (tmp_path / "journal.db").read_bytes()
    try:
        async with opened(tmp_path) as user:
            assert damages(user.journal.unsettled()) == dict.fromkeys(("r2", "r3", "r4", "r5"), "")
            assert user.journal.journal_id == journal_id
            assert len(user.everything()) == 6 * 21 + 4 + 2
    except JournalError:
        assert (tmp_path / "journal.db").read_bytes() == before


def spoil(path: Path, pages: slice) -> bytes:
    """Overwrite the headers of pages, and return the content of the file."""
    data = bytearray(path.read_bytes())
    for page in range(len(data) // 8192)[pages]:
        data[page * 8192 : page * 8192 + 8] = bytes(range(200, 208))
    path.write_bytes(data)
    return bytes(data)


async def test_what_sqlite_can_read_of_a_damaged_file_is_in_a_new_one(tmp_path, caplog):
    """One page of events is damaged: the rollouts with events in it are damaged, and the others are as before."""
    await written(tmp_path)
    path = tmp_path / "journal.db"
    page = path.read_bytes().index(f"{TEXT} r4 7 ".encode()) // 8192
    spoiled = spoil(path, slice(page, page + 1))
    async with opened(tmp_path) as user:
        reports = damages(user.journal.unsettled())
        assert reports["r4"]
        assert {name for name, damage in reports.items() if not damage} >= {"r2", "r5"}
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert time.strftime("%Y") in aside.name
    assert aside.read_bytes() == spoiled
    assert str(aside) in caplog.text


async def test_a_file_of_which_sqlite_can_read_nothing_is_refused_and_unchanged(tmp_path):
    await written(tmp_path)
    spoiled = spoil(tmp_path / "journal.db", slice(1, None))
    with pytest.raises(JournalError) as refused:
        SqliteJournal(tmp_path)
    assert "restore a backup" in str(refused.value)
    assert (tmp_path / "journal.db").read_bytes() == spoiled
    assert not list(tmp_path.glob("*damaged*"))


def flipped_log(folder: Path, at: int) -> bytes:
    """Flip a bit of the write-ahead log, and return the log."""
    flip(folder / "journal.db-wal", 8 * at)
    return (folder / "journal.db-wal").read_bytes()


BYTES_OF_LOG = pytest.mark.parametrize("at", [40, 8, 1036], ids=["a salt of a frame", "the header", "a page"])


@BYTES_OF_LOG
async def test_commits_after_a_damaged_frame_of_the_log_are_reported_as_lost(tmp_path, caplog, at):
    """SQLite leaves them out without a word."""
    await written(tmp_path / "state")
    async with opened(tmp_path / "state") as user:
        for name in ("s0", "s1", "s2"):
            user.accept(name)
            await user.commit()
        shutil.copytree(tmp_path / "state", tmp_path / "copy")
    damaged = flipped_log(tmp_path / "copy", at)
    async with opened(tmp_path / "copy") as user:
        assert set(damages(user.journal.unsettled())) == {"r2", "r3", "r4", "r5"}
    (aside,) = (tmp_path / "copy").glob("journal.db.damaged-*-wal")
    assert aside.read_bytes() == damaged
    assert "its write-ahead log is damaged" in caplog.text


@BYTES_OF_LOG
async def test_a_journal_whose_tables_are_in_a_damaged_log_is_refused(tmp_path, at):
    async with opened(tmp_path / "state") as user:
        user.accept("r0")
        await user.commit()
        shutil.copytree(tmp_path / "state", tmp_path / "copy")
    damaged = flipped_log(tmp_path / "copy", at)
    with pytest.raises(JournalError) as refused:
        SqliteJournal(tmp_path / "copy")
    assert "its write-ahead log is damaged" in str(refused.value)
    assert (tmp_path / "copy" / "journal.db-wal").read_bytes() == damaged


@pytest.mark.parametrize("done", [0, 1, 2])
async def test_a_crash_during_the_replacement_of_a_damaged_file(tmp_path, done):
    """A start continues after each step: the damaged log goes aside, then the file, then the new file is moved."""
    await written(tmp_path)
    path = tmp_path / "journal.db"
    fresh = path.read_bytes()
    path.with_name("journal.db.recovered").write_bytes(fresh)
    path.write_bytes(b"damaged" * 3000)
    path.with_name("journal.db-wal").write_bytes(b"old log" * 3000)
    for name in ("journal.db-wal", "journal.db")[:done]:
        (tmp_path / name).unlink()
    async with opened(tmp_path) as user:
        assert len(user.journal.unsettled()) == 4
    assert not list(tmp_path.glob("*.recovered"))
    assert len(list(tmp_path.glob("journal.db.damaged-*"))) == 2 - done


async def test_an_incomplete_last_transaction_is_no_damage(tmp_path, caplog):
    """As after a crash: the journal has the committed events and reports no damage."""
    async with opened(tmp_path / "state") as user:
        user.accept("r0")
        await user.commit()
        user.accept("r1")
        await user.commit()
        data = {name: (tmp_path / "state" / name).read_bytes() for name in ("journal.db", "journal.db-wal")}
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "journal.db").write_bytes(data["journal.db"])
    (tmp_path / "copy" / "journal.db-wal").write_bytes(data["journal.db-wal"][:-1000])
    async with opened(tmp_path / "copy") as user:
        assert damages(user.journal.unsettled()) == {"r0": ""}
    assert not caplog.records


async def test_damage_in_an_open_journal_is_reported_to_readers(tmp_path):
    await written(tmp_path)
    store = SqliteJournal(tmp_path)
    try:
        store.unsettled()
        change(tmp_path, "UPDATE events SET body = x'00' WHERE sequence = 3 AND number = 5")
        with pytest.raises(DataLoss):
            store.events("r2", 1, 4, 1)
        assert store.find("r2")[0].damage
        assert not store.find("r3")[0].damage
    finally:
        store.close()


async def test_damaged_credentials_are_not_used(tmp_path, caplog):
    async with opened(tmp_path) as user:
        user.accept("r0", callback=CALLBACK)
        user.accept("r1", callback=CALLBACK)
        await user.commit()
    damaged = next((tmp_path / "credentials").iterdir())
    flip(damaged, 8 * damaged.read_bytes().index(b"credential-of"))
    async with opened(tmp_path) as user:
        credentials = sorted(entry.init.callback.credential for entry in user.journal.unsettled())
        assert credentials == ["", CALLBACK.credential]
    assert "are damaged" in caplog.text
    assert "of-the-callback" not in caplog.text


def test_a_table_has_a_checksum_for_every_column():
    for table in schema.JOURNAL.tables.values():
        covered = {column for columns in table.sums.values() for column in columns}
        assert covered | set(table.sums) == set(table.columns)


async def test_a_large_rollout_is_found_without_reading_all_of_its_events(tmp_path, monkeypatch):
    """A checksum of a large rollout's event is checked when the event is read; a missing event is detected at once."""
    monkeypatch.setattr("osmosis_grpc.storage.journal.reader.CHECKED_BYTES", 1000)
    async with opened(tmp_path) as user:
        user.accept("r1")
        for number in range(3):
            user.append(events.Logged(TEXT * 40, {"n": number}), "r1")
        user.end("r1")
        user.deliver("r1")
        await user.commit()
    change(tmp_path, "UPDATE events SET checksum = 1 WHERE number = 3")
    async with opened(tmp_path) as user:
        (found,) = user.journal.find("r1")
        assert (found.damage, found.outcome.finish_reason) == ("", "stop")
        with pytest.raises(DataLoss, match="does not match its checksum"):
            user.journal.events("r1", 1, 2, 1)
    change(tmp_path, "DELETE FROM events WHERE number = 3")
    async with opened(tmp_path) as user:
        assert user.journal.find("r1")[0].outcome.failure.reason == "DATA_LOSS"
