"""A file of an earlier release is converted as it is opened; a later one, and a damaged older one, stay as they are."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal.schema import JOURNAL
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.storage.sqlite.database import LockedFile, look
from tests.storage.journals import opened

NOTES = "CREATE TABLE notes (rollout_id TEXT PRIMARY KEY, note TEXT, checksum INTEGER NOT NULL)"
STEP = f"ALTER TABLE rollouts ADD COLUMN colour TEXT; ALTER TABLE rollouts ADD COLUMN colour_sum INTEGER; {NOTES}"
COLUMNS = "    colour TEXT,\n    colour_sum INTEGER,\n    UNIQUE (rollout_id, attempt)"
SUMS = JOURNAL.sums | {"rollouts": JOURNAL.sums["rollouts"] | {"colour_sum": ("rollout_id", "colour")}}
TABLES = JOURNAL.tables_script.replace("    UNIQUE (rollout_id, attempt)", COLUMNS) + f"\n{NOTES};"
LATER = replace(JOURNAL, tables_script=TABLES, steps=(*JOURNAL.steps, STEP), sums=SUMS)
"""The journal of a release with a new column, a checksum of its own, and a new table."""
INDEX = "CREATE INDEX rollouts_by_colour ON rollouts (colour)"
LATEST = replace(LATER, tables_script=f"{TABLES}{INDEX};", steps=(*LATER.steps, INDEX))
"""The journal of the release after it."""


@pytest.fixture
async def path(tmp_path):
    async with opened(tmp_path) as user:
        for name in ("r1", "r2"):
            user.accept(name)
        user.end("r1")
        await user.commit()
    return tmp_path / "journal.db"


def contents(database):
    return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in ("facts", "events", "tombstones")}


def rollouts(database, schema):
    found = database.execute("SELECT * FROM rollouts ORDER BY sequence").fetchall()
    assert [schema.tables["rollouts"].wrong(row) for row in found] == [""] * len(found)
    return [row[: len(JOURNAL.tables["rollouts"].columns)] for row in found]


@pytest.mark.parametrize("later", [LATER, LATEST])
def test_the_next_release_converts_a_file_and_keeps_every_row(path, later):
    with closing(look(path, JOURNAL)) as database:
        before, kept = contents(database), rollouts(database, JOURNAL)
    for _ in range(2):  # the second time, it is of this version
        with closing(LockedFile(path, later)) as file:
            assert (contents(file.database), rollouts(file.database, later)) == (before, kept)
            assert file.database.execute(later.CATALOG).fetchall() == later.catalog
    assert len(kept) == 2


def test_a_release_after_the_next_converts_both(path):
    LockedFile(path, LATER).close()
    with closing(LockedFile(path, LATEST)) as file:
        assert len(rollouts(file.database, LATEST)) == 2
        assert file.database.execute(LATEST.CATALOG).fetchall() == LATEST.catalog


def test_the_release_before_refuses_a_converted_file_and_changes_nothing(path):
    LockedFile(path, LATER).close()
    before = path.read_bytes()
    for opens in (LockedFile, look):
        with pytest.raises(JournalError, match=f"schema {LATER.version}, this one reads {JOURNAL.version}"):
            opens(path, JOURNAL)
    assert path.read_bytes() == before


def test_a_reader_of_the_next_release_sees_an_older_file_and_changes_nothing(path):
    before = path.read_bytes()
    with closing(look(path, LATER)) as database:
        assert [row[1] for row in rollouts(database, LATER)] == ["r1", "r2"]
        assert database.execute("SELECT colour FROM rollouts").fetchall() == [(None,), (None,)]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "step", [f"{STEP}; SELECT * FROM nothing", "ALTER TABLE rollouts ADD COLUMN other TEXT"], ids=["fails", "differs"]
)
def test_a_step_that_fails_leaves_the_file_as_it_is(path, step):
    wrong = replace(LATER, steps=(*JOURNAL.steps, step))
    with pytest.raises((JournalError, sqlite3.Error)):
        LockedFile(path, wrong)
    with closing(LockedFile(path, JOURNAL)) as file:
        assert len(rollouts(file.database, JOURNAL)) == 2


def test_a_damaged_file_of_an_earlier_release_is_left_to_that_release(path):
    data = bytearray(path.read_bytes())
    data[JOURNAL.page_size : 2 * JOURNAL.page_size] = bytes(JOURNAL.page_size)
    path.write_bytes(data)
    with pytest.raises(JournalError, match="an earlier version wrote it"):
        LockedFile(path, LATER)
    assert path.read_bytes() == data
    LockedFile(path, JOURNAL).close()  # recovers what it can
    LockedFile(path, LATER).close()


def test_a_journal_is_no_ledger_of_an_earlier_release(path):
    with pytest.raises(LEDGER.error, match="of another program"):
        LockedFile(path, replace(LEDGER, steps=("SELECT 1",)))
