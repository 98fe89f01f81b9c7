"""Runs one SELECT over the views of a journal. Nothing but the views can be read, and nothing can be written.

The views are temporary views over the journal's table of rollouts. A column that needs the events of a rollout calls a
function of this module, so a query decodes only the rollouts and columns that it asks for.
"""

import difflib
import re
import secrets
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.cli.journal_views import VIEWS, Column, View
from osmosis_grpc.cli.rollout_facts import KEPT, JournalFacts
from osmosis_grpc.records.reading.journal_folder import doctor_hint
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.event_reader import EventReader
from osmosis_grpc.storage.sqlite.database import look
from osmosis_grpc.storage.worker_folders import worker_folders

STEPS = 5000
"""SQLite asks after this many steps whether it may go on. They take about a millisecond."""
MEMORY = 1024 * 1024 * 1024
"""SQLite may use this many bytes; a query that needs more is an error. Large sorts are in temporary files."""
LONGEST = 256 * 1024 * 1024
"""The longest text in bytes."""
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
_HIDDEN = re.compile(r"facts|tombstones|sqlite_.*|pragma_.*|dbstat")
_MISSING = re.compile(r"no such (column|table|function): (.+)")
_VALUES = {(view.name, column.name): column.value for view in VIEWS.values() for column in view.columns if column.value}
_VALUE, _ROWS = (f"osmosis_{name}_{secrets.token_hex(8)}" for name in ("value", "rows"))
"""The functions of the views. No user's query can name them, so their arguments are always valid."""
_HELP = "osmosis-grpc query lists the views"


class QueryError(Exception):
    """The query is wrong, or it took too long. The message says what to do."""


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class Answer(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class QueryDatabase:
    """The views of the journal in a folder, as it is now; a server may be using it. Used with `with`.

    Raises SourceError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journals: dict[str, JournalFacts] = {}
        """The facts of each worker's journal, by the name of its database in SQL."""
        self._stack = ExitStack()
        self._open(folder)
        self._rows = lru_cache(KEPT)(self._read_rows)
        self._own = False
        """Whether the statements that are prepared now are ours, and not the user's."""
        self._read: set[tuple[str | None, str | None, str | None]] = set()
        """The views, and the tables and columns that each of them reads."""
        self._denied = ""
        self._interrupted = False
        self._deadline = float("inf")
        self._error: Exception | None = None
        self._prepare()

    def __enter__(self) -> "QueryDatabase":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _open(self, folder: Path) -> None:
        """Open the journals of all workers. The connection of the first one runs the query over all."""
        others = [other for other in worker_folders(folder).values() if (other / schema.FILE).exists()]
        try:
            if not (folder / schema.FILE).exists():
                raise JournalError(f"there is no journal {folder / schema.FILE}")
            for number, each in enumerate((folder, *others)):
                database = look(each / schema.FILE, schema.JOURNAL)
                self._stack.callback(database.close)
                name = f"worker_{number}" if number else "main"
                self._journals[name] = JournalFacts(EventReader(database), each)
                if not number:
                    self._database = database
                    most = database.getlimit(sqlite3.SQLITE_LIMIT_ATTACHED)
                    if len(others) > most:
                        raise JournalError(
                            f"{folder} has the journals of {len(others) + 1} workers, and a query reads "
                            f"{most + 1} at most: name the folder of one of them"
                        )
                else:
                    uri = f"{(each / schema.FILE).absolute().as_uri()}?mode=ro"
                    self._database.execute(f"ATTACH ? AS {name}", (uri,))
        except (JournalError, sqlite3.Error, OSError) as error:
            self._stack.close()
            raise SourceError(f"{error}; --state-dir names the folder that serve was given") from None

    @property
    def damaged(self) -> int:
        """The number of rollouts that the query met and that are damaged. They lack rows or values."""
        return sum(len(facts.damaged) for facts in self._journals.values())

    @contextmanager
    def select(self, sql: str, timeout: float) -> Iterator[Answer]:
        """Yield the answer to a query. Each of its rows is computed when it is asked for.

        Raises QueryError, SourceError or Interrupted, also while the rows are read. `timeout` is in seconds.
        """
        self._deadline = time.monotonic() + timeout
        with self._signals(), closing(self._database.cursor()) as cursor:
            try:
                cursor.execute(sql)
                if cursor.description is None:
                    raise QueryError(f"there is no SELECT; {_HELP}, and osmosis-grpc docs query has examples")
                yield Answer(_unique([column[0] for column in cursor.description]), cursor)
            except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
                raise self._explained(error, sql, timeout) from None

    def _explained(self, error: Exception, sql: str, timeout: float) -> Exception:
        """Return the exception for an error of SQLite."""
        if self._interrupted:
            return Interrupted()
        if time.monotonic() > self._deadline:
            return QueryError(
                f"no answer within {timeout:g} s; select fewer rollouts, or allow more with --timeout SECONDS"
            )
        if self._error is not None:
            return SourceError(f"the journal cannot be read: {self._error}; {doctor_hint(self._folder)}")
        if self._denied:
            return QueryError(self._denied)
        text = " ".join(str(error).split())
        if isinstance(error, MemoryError):
            return QueryError(f"it needs more than {MEMORY >> 30} GiB of memory; select fewer rows or columns")
        if isinstance(error, sqlite3.DataError):
            return QueryError(
                f"a value has more than {LONGEST >> 20} MiB; select a part of it, such as substr(text, 1, 100)"
            )
        missing = _MISSING.fullmatch(text)
        return QueryError(f"{text}; {_near(missing[1], missing[2], sql)}" if missing else text)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let Ctrl-C interrupt the query."""

        def interrupt(*_: object) -> None:
            self._interrupted = True
            self._database.interrupt()

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _prepare(self) -> None:
        database = self._database
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        database.create_function(_VALUE, 5, self._value, deterministic=True)
        database.create_function(_ROWS, 3, self._numbers, deterministic=True)
        for view in VIEWS.values():
            database.execute(_definition(view, self._journals))
        database.execute(
            "SELECT 1 FROM json_each('[]'), json_tree('[]')"
        ).fetchall()  # the first use makes their tables
        database.set_authorizer(self._note)
        for view in VIEWS.values():
            database.execute(f"SELECT * FROM {view.name} LIMIT 0").close()  # noqa: S608 - a name of ours
        database.set_authorizer(None)
        for pragma in ("query_only = 1", f"hard_heap_limit = {MEMORY}"):
            database.execute(f"PRAGMA {pragma}").fetchall()
        database.set_authorizer(self._authorize)
        database.set_progress_handler(self._over, STEPS)

    def _over(self) -> bool:
        return self._interrupted or time.monotonic() > self._deadline

    def _value(self, view: str, column: str, journal: str, sequence: int | None, number: int | None) -> Any:
        """Return a value of a view: of the row `number` of a rollout.

        SQLite asks with NULL for a column beside an aggregate, such as count(*), if the view has no rows.
        """
        if sequence is None or number is None:
            return None
        with self._reading():
            row = self._rows(view, journal, sequence)[number]
            return None if row is None else _clean(_VALUES[view, column](row))

    def _numbers(self, view: str, journal: str, sequence: int) -> str:
        """Return the numbers of the rows that a rollout has in a view, as JSON."""
        with self._reading():
            return str(list(range(len(self._rows(view, journal, sequence)))))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Allow the block to read tables, and note its error, because SQLite hides the error of a function."""
        own, self._own = self._own, True
        try:
            yield
        except Exception as error:
            self._error = self._error or error
            raise
        finally:
            self._own = own

    def _read_rows(self, name: str, journal: str, sequence: int) -> list[Any]:
        if self._over():
            raise TimeoutError
        view, facts = VIEWS[name], self._journals[journal].rollout(sequence)
        if view.rows is None:
            return [facts]
        return [] if facts is None else list(view.rows(facts, facts.events(view.kinds)))

    def _note(self, action: int, first: str | None, second: str | None, database: str | None, view: str | None) -> int:
        """Note a column that a view reads."""
        if action == sqlite3.SQLITE_READ and view is not None:
            self._read.add((view, first, second))
        return sqlite3.SQLITE_OK

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, view: str | None
    ) -> int:
        """Allow a query to read the views, and nothing else.

        `view` is the view that asks, or a subquery of the user that has the same name as a view.
        """
        if self._own or action in _READS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            allowed = second not in _FORBIDDEN
            self._denied = self._denied or ("" if allowed else f"the function {second} is not allowed")
        elif action == sqlite3.SQLITE_READ and first is not None:
            seen = (
                (view, first, second) in self._read
                or database not in self._journals
                or first in ("json_each", "json_tree")
            )
            allowed = not _HIDDEN.fullmatch(first) and (seen or (first, second) == ("rollouts", ""))
            self._denied = self._denied or ("" if allowed else f"{first} is not a view; {_HELP}")
        else:
            allowed = False
            self._denied = self._denied or f"only SELECT is allowed; {_HELP}"
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _definition(view: View, journals: Iterable[str]) -> str:
    """Return the statement that makes a view over the journals of all workers."""
    return f"CREATE TEMP VIEW {view.name} AS {' UNION ALL '.join(_select(view, journal) for journal in journals)}"


def _select(view: View, journal: str) -> str:
    columns = ",\n    ".join(f"{_expression(view, column, journal)} AS {column.name}" for column in view.columns)
    rows = f", json_each({_ROWS}('{view.name}', '{journal}', r.sequence)) AS n" if view.rows is not None else ""
    return f"SELECT\n    {columns}\n    FROM {journal}.rollouts AS r{rows}"


def _expression(view: View, column: Column, journal: str) -> str:
    number = "n.value" if view.rows is not None else "0"
    value = f"{_VALUE}('{view.name}', '{column.name}', '{journal}', r.sequence, {number})"
    return column.sql.replace("{value}", value) or value


def _clean(value: Any) -> Any:
    """Return a value that SQLite can store."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def _unique(names: list[str]) -> list[str]:
    """Return the names, each with a number if an earlier name is the same."""
    found: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _near(what: str, name: str, sql: str) -> str:
    """Return what the user perhaps means by an unknown name."""
    if what == "function":
        return "SQLite's functions are at https://sqlite.org/lang_corefunc.html"
    short = name.rpartition(".")[2].strip("\"'`[] ").lower()
    if what == "table":
        near = difflib.get_close_matches(short, VIEWS, 2, 0.5)
        return f"similar: {', '.join(near)}" if near else f"the views are {', '.join(VIEWS)}"
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", sql, re.I)]
    known = {view: [column.name for column in VIEWS[view].columns] for view in VIEWS}
    columns = [column for view in named for column in known[view]]
    near = list(dict.fromkeys(difflib.get_close_matches(short, columns, 3, 0.6)))
    others = [view for view in VIEWS if short in known[view] and view not in named]
    parts = [f"similar: {', '.join(near)}"] if near else []
    parts += [
        f"the view{'s' * (len(others) > 1)} {', '.join(others)} {'have' if len(others) > 1 else 'has'} it"
    ] * bool(others)
    if not parts:
        parts = [f"{view} has {', '.join(known[view])}" for view in named[:1]]
    return "; ".join(parts) or _HELP
