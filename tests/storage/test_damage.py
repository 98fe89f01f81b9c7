"""X9: a damaged journal is read as far as it can be; what is lost of a rollout is named, and costs no other one."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_grpc.errors import DataLoss
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.sqlite.checksum import event_sum, row_sum
from osmosis_grpc.types import events
from tests.damaged import flip
from tests.storage.journals import CALLBACK, keeping

TEXT = "a text that stands in the journal but once"


async def written(folder: Path, count: int = 6) -> str:
    """Rollouts r0, r1, ...: the first two settled, the next two ended, the others running. Returns the journal's id."""
    async with keeping(folder) as kept:
        for number in range(count):
            name = f"r{number}"
            kept.accept(name)
            for step in range(20):
                kept.append(events.Logged("step", {"text": f"{TEXT} {name} {step} " * 10}), name)
            if number < 4:
                kept.end(name, result_id=name)
            if number < 2:
                kept.deliver(name)
        await kept.commit()
        return kept.store.journal_id


def change(folder: Path, statement: str, *values) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as database, database:
        assert database.execute(statement, values).rowcount == 1


def damages(folder_entries) -> dict[str, str]:
    return {entry.init.request.rollout_id: entry.damage for entry in folder_entries}


def test_x09_checksums_tell_values_keys_and_tables_apart():
    row = (1, 2, 3, 4.5, 6, b"body")
    assert event_sum(*row) == row_sum(b"events.checksum", row)
    others = [(2, 2, 3, 4.5, 6, b"body"), (1, 2, 3, 4.5, 6, b"bodz"), (1, 2, 3, 4.5, 7, b"body")]
    assert len({row_sum(b"events.checksum", one) for one in (row, *others)} | {row_sum(b"e", row)}) == 5
    assert row_sum(b"t", ("ab", "c")) != row_sum(b"t", ("a", "bc"))
    assert row_sum(b"t", (None,)) != row_sum(b"t", ("",)) != row_sum(b"t", (b"",))
    assert row_sum(b"t", (1, True)) == row_sum(b"t", (1.0, 1)), "as SQLite keeps them"


async def test_x09_a_damaged_event_ends_its_rollout_and_no_other(tmp_path, caplog):
    await written(tmp_path)
    data = (tmp_path / "journal.db").read_bytes()
    flip(tmp_path / "journal.db", 8 * data.index(f"{TEXT} r4 7 ".encode() * 9))
    async with keeping(tmp_path) as kept:
        told = damages(kept.store.unsettled())
        assert {name for name, damage in told.items() if damage} == {"r4"}
        assert set(told) == {"r2", "r3", "r4", "r5"}
        assert "event 9" in told["r4"]
        assert "checksum" in told["r4"]
        assert "rollout r4 attempt 1 is damaged" in caplog.text
        assert "DATA_LOSS" in caplog.text
        assert len(kept.store.events("r4", 1, 0, 100)) == 8
        with pytest.raises(DataLoss, match="does not match its checksum"):
            kept.store.events("r4", 1, 8, 100)
        found = [event.rollout_id for _, event in kept.everything()]
        assert (found.count("r4"), found.count("r5")) == (20, 21), "who follows all events is not stopped by one"


async def test_x09_a_rollout_that_moves_to_another_row_is_noticed(tmp_path):
    await written(tmp_path)
    change(tmp_path, "UPDATE events SET sequence = 6 WHERE sequence = 5 AND number = 21")
    async with keeping(tmp_path) as kept:
        told = damages(kept.store.unsettled())
        assert {name for name, damage in told.items() if damage} == {"r5"}, "a row that nobody signed has come to it"


async def test_x09_a_settled_rollout_that_is_damaged_has_failed(tmp_path, caplog):
    await written(tmp_path)
    data = (tmp_path / "journal.db").read_bytes()
    flip(tmp_path / "journal.db", 8 * data.index(f"{TEXT} r1 7 ".encode() * 9))
    async with keeping(tmp_path) as kept:
        kept.store.unsettled()
        (damaged,), (whole,) = kept.store.find("r1"), kept.store.find("r0")
        assert whole.completion.status == "COMPLETED"
        assert not whole.damage
        assert damaged.state == damaged.completion.status == "FAILED"
        assert (damaged.completion.failure.reason, damaged.completion.failure.boundary) == ("DATA_LOSS", "server")
        assert "rollout r1 attempt 1 is damaged" in caplog.text


@pytest.mark.parametrize("column", ["state = 'FAILED'", "settled = 1", "ended = 3", "positions = x'00'", "size = 7"])
async def test_x09_the_end_in_a_row_is_made_anew_from_its_events(tmp_path, caplog, column):
    await written(tmp_path)
    change(tmp_path, f"UPDATE rollouts SET {column} WHERE rollout_id = 'r2'")
    async with keeping(tmp_path) as kept:
        told = damages(kept.store.unsettled())
        assert told == dict.fromkeys(("r2", "r3", "r4", "r5"), "")
        assert "the row of rollout r2 was damaged" in caplog.text
        assert kept.store.find("r2")[0].completion.result_id == "r2"


@pytest.mark.parametrize(
    ("column", "damaged"), [("owner = 'you'", True), ("rollout_id = 'r9'", False), ("attempt = 2", False)]
)
async def test_x09_the_start_in_a_row_is_checked(tmp_path, column, damaged):
    """Ids are told by the first event, too; whose it is, is not."""
    await written(tmp_path)
    change(tmp_path, f"UPDATE rollouts SET {column} WHERE rollout_id = 'r3'")
    async with keeping(tmp_path) as kept:
        told = damages(kept.store.unsettled())
        assert set(told) == {"r2", "r3", "r4", "r5"}
        assert bool(told["r3"]) is damaged


async def test_x09_events_that_are_gone_are_noticed(tmp_path):
    await written(tmp_path)
    change(tmp_path, "DELETE FROM events WHERE sequence = 4 AND number = 22")
    change(tmp_path, "DELETE FROM events WHERE sequence = 5 AND number = 1")
    change(tmp_path, "DELETE FROM events WHERE sequence = 6 AND number = 9")
    async with keeping(tmp_path) as kept:
        told = damages(kept.store.unsettled())
        assert {name for name, damage in told.items() if damage} == {"r3", "r4", "r5"}


async def test_x09_facts_and_cancels_that_are_damaged(tmp_path, caplog):
    journal_id = await written(tmp_path)
    async with keeping(tmp_path) as kept:
        kept.store.add_tombstone("me", "soon", 1, 1000.0)
        kept.store.add_tombstone("me", "later", 1, 1000.0)
        await kept.commit()
        last = kept.store.last_position
    change(tmp_path, "UPDATE facts SET value = 'x' WHERE name = 'journal_id'")
    change(tmp_path, "UPDATE facts SET value = 0.5 WHERE name = 'forgotten_position'")
    change(tmp_path, "UPDATE tombstones SET attempt = 2 WHERE rollout_id = 'soon'")
    async with keeping(tmp_path) as kept:
        assert kept.store.journal_id == journal_id
        assert kept.store.forgotten_position == last, "cursors of before are too old: nobody knows"
        assert [row[1] for row in kept.store.tombstones()] == ["later"]
        assert "the cancel of rollout soon is damaged" in caplog.text


@pytest.mark.parametrize("at", [0, 18, 24, 32, 36, 47, 52, 59, 63, 67, 71])
async def test_x09_a_damaged_head_costs_nothing(tmp_path, caplog, at):
    journal_id = await written(tmp_path)
    flip(tmp_path / "journal.db", 8 * at)
    async with keeping(tmp_path) as kept:
        assert damages(kept.store.unsettled()) == dict.fromkeys(("r2", "r3", "r4", "r5"), "")
        assert kept.store.journal_id == journal_id
        assert len(kept.everything()) == 6 * 21 + 4 + 2


async def test_x09_what_was_damaged_is_kept_beside_it(tmp_path, caplog):
    await written(tmp_path)
    path = tmp_path / "journal.db"
    spoiled = bytearray(path.read_bytes())
    for page in range(1, len(spoiled) // 8192):
        spoiled[page * 8192 : page * 8192 + 8] = bytes(range(200, 208))
    path.write_bytes(spoiled)
    async with keeping(tmp_path) as kept:
        assert damages(kept.store.unsettled()) == dict.fromkeys(("r2", "r3", "r4", "r5"), "")
    (aside,) = tmp_path.glob("journal.db.damaged-*")
    assert time.strftime("%Y") in aside.name
    assert aside.read_bytes() == spoiled
    assert str(aside) in caplog.text


@pytest.mark.parametrize("done", [0, 1, 2])
async def test_x09_a_crash_while_the_fresh_file_takes_its_place(tmp_path, done):
    """The damaged log goes aside, then the file, then the fresh one comes. After each the next start goes on."""
    await written(tmp_path)
    path = tmp_path / "journal.db"
    fresh = path.read_bytes()
    path.with_name("journal.db.mended").write_bytes(fresh)
    path.write_bytes(b"damaged" * 3000)
    path.with_name("journal.db-wal").write_bytes(b"old log" * 3000)
    for name in ("journal.db-wal", "journal.db")[:done]:
        (tmp_path / name).unlink()
    async with keeping(tmp_path) as kept:
        assert len(kept.store.unsettled()) == 4
    assert not list(tmp_path.glob("*.mended"))
    assert len(list(tmp_path.glob("journal.db.damaged-*"))) == 2 - done


async def test_x09_a_log_that_breaks_off_is_no_damage(tmp_path, caplog):
    """As after a crash: what was not committed to its end is not there, and there is nothing to tell."""
    async with keeping(tmp_path / "state") as kept:
        kept.accept("r0")
        await kept.commit()
        kept.accept("r1")
        await kept.commit()
        data = {name: (tmp_path / "state" / name).read_bytes() for name in ("journal.db", "journal.db-wal")}
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "journal.db").write_bytes(data["journal.db"])
    (tmp_path / "copy" / "journal.db-wal").write_bytes(data["journal.db-wal"][:-1000])
    async with keeping(tmp_path / "copy") as kept:
        assert damages(kept.store.unsettled()) == {"r0": ""}
    assert not caplog.records


async def test_x09_damage_while_it_is_open_is_told_to_who_asks(tmp_path):
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


async def test_x09_damaged_credentials_are_not_used(tmp_path, caplog):
    async with keeping(tmp_path) as kept:
        kept.accept("r0", callback=CALLBACK)
        kept.accept("r1", callback=CALLBACK)
        await kept.commit()
    damaged = next((tmp_path / "credentials").iterdir())
    flip(damaged, 8 * damaged.read_bytes().index(b"credential-of"))
    async with keeping(tmp_path) as kept:
        credentials = sorted(entry.init.callback.credential for entry in kept.store.unsettled())
        assert credentials == ["", CALLBACK.credential]
    assert "are damaged" in caplog.text
    assert "of-the-callback" not in caplog.text


def test_x09_a_table_has_a_checksum_for_every_column():
    for table in schema.JOURNAL.tables.values():
        covered = {column for columns in table.sums.values() for column in columns}
        assert covered | set(table.sums) == set(table.columns)


async def test_a_large_rollout_is_found_without_reading_all_of_its_events(tmp_path, monkeypatch):
    """A checksum of a large rollout's event is checked when the event is read; a missing event is noticed at once."""
    monkeypatch.setattr("osmosis_grpc.storage.journal.reader.CHECKED_BYTES", 1000)
    async with keeping(tmp_path) as kept:
        kept.accept("r1")
        for number in range(3):
            kept.append(events.Logged(TEXT * 40, {"n": number}), "r1")
        kept.end("r1")
        kept.deliver("r1")
        await kept.commit()
    change(tmp_path, "UPDATE events SET checksum = 1 WHERE number = 3")
    async with keeping(tmp_path) as kept:
        (found,) = kept.store.find("r1")
        assert (found.damage, found.completion.finish_reason) == ("", "stop")
        with pytest.raises(DataLoss, match="does not match its checksum"):
            kept.store.events("r1", 1, 2, 1)
    change(tmp_path, "DELETE FROM events WHERE number = 3")
    async with keeping(tmp_path) as kept:
        assert kept.store.find("r1")[0].completion.failure.reason == "DATA_LOSS"
