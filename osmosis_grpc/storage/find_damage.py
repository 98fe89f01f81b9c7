"""Counts the sound rows of a journal or a ledger, and lists the damaged rows. The file is not changed."""

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import RolloutRow
from osmosis_grpc.storage.sqlite.database import check_version, look, problem_of
from osmosis_grpc.storage.sqlite.file_schema import Row, Schema, Table
from osmosis_grpc.storage.sqlite.pages import Pages
from osmosis_grpc.storage.sqlite.salvage import read_out


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
    lost: int = 0
    sound: Counter[str] = field(default_factory=Counter)
    """The number of sound rows, by table."""
    damaged: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not (self.structure or self.lost or self.damaged)


def examine(path: Path, schema: Schema) -> Examined:
    """Examine a file. A process can have the file open meanwhile. Raises schema.error, OSError, sqlite3.Error."""
    found = Examined(schema.kind, path)
    with closing(Pages(path, schema.page_size)) as pages:
        check_version(pages, path, schema)
        found.structure = pages.problem(schema)
        if pages.is_blank:
            if pages.count and not pages.is_database:
                raise schema.error(f"{path} cannot be used as a {schema.kind}: file is not a database")
            found.structure = "it is empty: it has no tables"
            return found
        if not found.structure:
            with closing(look(path, schema)) as database:
                found.structure = problem_of(database, schema)
                if not found.structure:
                    _rows(database, schema, found)
                    return found
        with tempfile.TemporaryDirectory() as folder:  # the next start of the program reads the same rows
            fresh = Path(folder) / path.name
            salvaged = read_out(pages, fresh, schema)
            found.lost = pages.lost
            found.damaged += [Finding(name, 0, "", "", "its row cannot be read") for name in salvaged.lost]
            with closing(look(fresh, schema)) as database:
                _rows(database, schema, found)
    return found


def _rows(database: sqlite3.Connection, schema: Schema, found: Examined) -> None:
    for table in schema.tables.values():
        for row in database.execute(f"SELECT * FROM {table.name} NOT INDEXED"):  # noqa: S608
            wrong = table.wrong(row)
            if wrong:
                found.damaged.append(_finding(database, table, row, f"{wrong} does not match"))
            else:
                found.sound[table.name] += 1
        found.sound[table.name] += 0
    if schema.kind == "journal":  # the events of a rollout have the numbers 1, 2, 3 and so on
        reader = Reader(database)
        known = {(one.rollout_id, one.attempt) for one in found.damaged}
        for row in map(RolloutRow._make, database.execute("SELECT * FROM rollouts NOT INDEXED")):
            what = reader.damage(row)
            if what and (row.rollout_id, row.attempt) not in known:
                found.damaged.append(Finding(row.rollout_id, row.attempt, "events", "", what))


def _finding(database: sqlite3.Connection, table: Table, row: Row, what: str) -> Finding:
    columns = dict(zip(table.columns, row, strict=True))
    if table.name == "events":
        query = "SELECT rollout_id, attempt FROM rollouts WHERE sequence IS ?"
        known = database.execute(query, (columns["sequence"],)).fetchone()
        columns["rollout_id"], columns["attempt"] = known or ("", 0)
    attempt = columns.get("attempt", 0)
    return Finding(
        str(columns.get("rollout_id", "")),
        attempt if isinstance(attempt, int) else 0,
        table.name,
        " ".join(str(row[at]) for at in table.key),
        what,
    )
