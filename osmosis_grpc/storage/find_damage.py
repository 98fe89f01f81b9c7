"""Counts the sound rows of a journal or a ledger, and lists the damaged rows. The file is not changed."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import RolloutRow
from osmosis_grpc.storage.lock_file import is_held
from osmosis_grpc.storage.sqlite.damaged_file import is_damage, log_damage, readable_rows
from osmosis_grpc.storage.sqlite.database import look, problem_of
from osmosis_grpc.storage.sqlite.file_schema import Row, Schema, Table


class Finding(NamedTuple):
    """One damaged row."""

    rollout_id: str
    """Empty if the row belongs to no rollout."""
    attempt: int
    table: str
    row: str
    """The key of the row in its table."""
    what: str


@dataclass
class Examined:
    """The result for one file."""

    kind: str
    path: Path
    structure: str = ""
    """A description of the damage in the file's structure, or empty if there is no damage."""
    sound: Counter[str] = field(default_factory=Counter)
    """The number of sound rows, by table."""
    damaged: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not (self.structure or self.damaged)


def examine(path: Path, schema: Schema) -> Examined:
    """Examine a file. A process can have the file open meanwhile. Raises schema.error, OSError, sqlite3.Error."""
    result = Examined(schema.kind, path)
    with closing(look(path, schema)) as database:
        result.structure = problem_of(database, schema, schema.version)
        if not result.structure and is_held(schema.lock_of(path)) is False:
            result.structure = log_damage(path)
        for table in schema.tables.values():
            result.sound[table.name] += 0
            for row in readable_rows(database, table):
                if wrong := table.wrong(row):
                    result.damaged.append(_finding(database, table, row, f"{wrong} does not match"))
                else:
                    result.sound[table.name] += 1
        if schema.kind == "journal":
            _examine_trails(database, schema.tables["rollouts"], result)
    return result


def _examine_trails(database: sqlite3.Connection, table: Table, result: Examined) -> None:
    """Find missing events: those of a rollout have the numbers 1, 2, 3 and so on."""
    reader = Reader(database)
    damaged = {(one.rollout_id, one.attempt) for one in result.damaged}
    for row in map(RolloutRow._make, readable_rows(database, table)):
        try:
            what = reader.damage(row)
        except sqlite3.Error as error:
            what = str(error)
        if what and (row.rollout_id, row.attempt) not in damaged:
            result.damaged.append(Finding(row.rollout_id, row.attempt, "events", "", what))


def _finding(database: sqlite3.Connection, table: Table, row: Row, what: str) -> Finding:
    columns = dict(zip(table.columns, row, strict=True))
    if table.name == "events":
        query = "SELECT rollout_id, attempt FROM rollouts NOT INDEXED WHERE sequence IS ?"
        try:
            name = database.execute(query, (columns["sequence"],)).fetchone()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            name = None
        columns["rollout_id"], columns["attempt"] = name or ("", 0)
    attempt = columns.get("attempt", 0)
    return Finding(
        str(columns.get("rollout_id", "")),
        attempt if isinstance(attempt, int) else 0,
        table.name,
        " ".join(str(row[at]) for at in table.key),
        what,
    )
