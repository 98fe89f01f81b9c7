"""Runs one SELECT of DuckDB over the views of a journal. A query can read nothing else, and cannot write.

Each view is a stream of Arrow batches, generated while DuckDB reads it. Only the columns that DuckDB's plan needs are
computed. Everything runs on one thread, because the journal's connection is bound to it.
"""

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.records.query.rollouts import Journal, Rollout
from osmosis_grpc.records.query.views import VIEWS, View
from osmosis_grpc.records.reading.journal_folder import doctor_hint
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.storage.state_folders import worker_folders

MEMORY = "1GiB"
"""How much memory DuckDB may use. A query that needs more fails."""
BATCH = 256
"""How many rows of a view are in memory at once."""
ROWS = 500
"""How many rows of an answer are fetched at once."""
_SETTINGS = (
    "temp_directory = ''",
    f"memory_limit = '{MEMORY}'",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
_HELP = "for the views: osmosis-grpc query"


class QueryError(Exception):
    """The query is invalid or took too long. The message says what to do."""


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class Answer(NamedTuple):
    """The result of a query."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class QueryDatabase:
    """The views of the journals in a folder, as they are at this moment. A server may be using the journals.

    Use it with `with`, on the main thread.

    Raises:
        SourceError: A journal cannot be read.
        MissingExtraError: DuckDB or pyarrow is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import duckdb
            import pyarrow
        except ImportError:
            raise MissingExtraError("query", "query") from None
        self._duckdb = duckdb
        self._arrow = pyarrow
        self._folder = folder
        self._needed: set[str] = set()
        """The columns that the query needs, from all views."""
        self._deadline = float("inf")
        self._interrupted = False
        self._error: Exception | None = None
        """The error that a view has raised, which DuckDB would hide."""
        with ExitStack() as stack:
            try:
                self._journals = [Journal(each, stack) for each in _journals(folder)]
            except (JournalError, OSError) as error:
                raise SourceError(f"{error}; --from names a state folder or a run") from None
            self._database = duckdb.connect(":memory:", config={"threads": 1})
            stack.callback(self._database.close)
            for view in VIEWS.values():
                self._add(view)
            for setting in _SETTINGS:
                self._database.execute(f"SET {setting}")
            self._stack = stack.pop_all()

    def __enter__(self) -> "QueryDatabase":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def damaged(self) -> int:
        """The number of damaged rollouts that the query has read. The answer lacks rows or values of these rollouts."""
        return sum(len(journal.damaged) for journal in self._journals)

    @contextmanager
    def select(self, sql: str, timeout: float) -> Iterator[Answer]:
        """Yield the answer to a query. Its rows are computed while you read them, so reading can raise the same errors.

        Args:
            sql: One SELECT.
            timeout: How many seconds the query may take until its last row.

        Raises:
            QueryError: The query is invalid or took too long.
            SourceError: The journal cannot be read.
            Interrupted: The user pressed Ctrl-C.
        """
        self._deadline = time.monotonic() + timeout
        with self._signals(timeout):
            try:
                self._check(sql)
                cursor = self._database.execute(sql)
                yield Answer(_unique(column[0] for column in cursor.description), self._rows(cursor))
            except self._duckdb.Error as error:
                raise self._explained(error, timeout) from None

    def _check(self, sql: str) -> None:
        """Plan the query, and store which columns it needs. Raises QueryError if it is not a single SELECT."""
        statements = self._database.extract_statements(sql)
        if not statements:
            raise QueryError(f"there is no SELECT; {_HELP}")
        if len(statements) > 1 or statements[0].type != self._duckdb.StatementType.SELECT:
            raise QueryError(f"only one SELECT is allowed; {_HELP}")
        plan = self._database.execute(f"EXPLAIN (FORMAT json) {statements[0].query}").fetchall()[0][1]
        names = {column.name for view in VIEWS.values() for column in view.columns}
        self._needed = {name for name in names if name in plan} if '"Projections"' in plan else names

    def _rows(self, cursor: Any) -> Iterator[tuple[Any, ...]]:
        while rows := cursor.fetchmany(ROWS):
            for row in rows:
                if self._over():
                    raise self._duckdb.InterruptException
                yield row

    def _over(self) -> bool:
        return self._interrupted or time.monotonic() > self._deadline

    def _explained(self, error: Exception, timeout: float) -> Exception:
        if self._interrupted:
            return Interrupted()
        if time.monotonic() > self._deadline:
            return QueryError(
                f"no answer within {timeout:g} s; select fewer rollouts, or allow more with --timeout SECONDS"
            )
        if self._error is not None:
            return SourceError(f"the journal cannot be read: {self._error}; {doctor_hint(self._folder)}")
        if isinstance(error, self._duckdb.OutOfMemoryException):
            return QueryError(f"it needs more than {MEMORY} of memory; select fewer rows or columns")
        text, _, _ = str(error).partition("\n\nLINE ")
        return QueryError(" ".join(text.split()))

    @contextmanager
    def _signals(self, timeout: float) -> Iterator[None]:
        """Let Ctrl-C and the deadline interrupt the query."""

        def interrupt(number: int, _: object) -> None:
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._database.interrupt()

        handlers = [(each, signal.signal(each, interrupt)) for each in (signal.SIGINT, signal.SIGALRM)]
        timer = signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for each, handler in handlers:
                signal.signal(each, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def _add(self, view: View) -> None:
        stream = f"{view.name}_stream"
        self._database.register(stream, _Stream(self, view))
        columns = ", ".join(f"{c.name} COLLATE NOCASE AS {c.name}" if c.nocase else c.name for c in view.columns)
        self._database.execute(f"CREATE TEMP VIEW {view.name} AS SELECT {columns} FROM {stream}")  # noqa: S608 - names of ours

    def stream(self, view: View) -> Any:
        """Return the rows of a view as a reader of Arrow batches."""
        types = {
            "VARCHAR": self._arrow.string(),
            "JSON": self._arrow.string(),
            "BIGINT": self._arrow.int64(),
            "DOUBLE": self._arrow.float64(),
            "BOOLEAN": self._arrow.bool_(),
        }
        schema = self._arrow.schema([(column.name, types[column.type]) for column in view.columns])
        return self._arrow.RecordBatchReader.from_batches(schema, self._batches(view, schema))

    def _batches(self, view: View, schema: Any) -> Iterator[Any]:
        read = {name: value for name, value in view.values.items() if name in self._needed}
        batch: list[dict[str, Any]] = []
        try:
            for rollout in self._rollouts():
                ids = {"rollout_id": rollout.row.rollout_id, "attempt": rollout.row.attempt}
                for row in view.rows(rollout):
                    batch.append(ids | {name: _clean(value(row)) for name, value in read.items()})
                    if len(batch) == BATCH:
                        yield self._arrow.RecordBatch.from_pylist(batch, schema)
                        batch = []
            if batch:
                yield self._arrow.RecordBatch.from_pylist(batch, schema)
        except Exception as error:
            self._error = self._error or error
            raise

    def _rollouts(self) -> Iterator[Rollout]:
        for journal in self._journals:
            for rollout in journal.rollouts():
                if self._over():
                    raise TimeoutError
                yield rollout


class _Stream:
    """A view for DuckDB. Each reader starts at its first row."""

    def __init__(self, database: QueryDatabase, view: View) -> None:
        self._database = database
        self._view = view

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._database.stream(self._view).__arrow_c_stream__()


def _journals(folder: Path) -> list[Path]:
    others = worker_folders(folder).values()
    return [folder, *(other for other in others if (other / FILE).exists())]


def _clean(value: Any) -> Any:
    """Return a value that Arrow can store. Numbers that are too large become None."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def _unique(names: Iterable[str]) -> list[str]:
    """Make names unique: append a number to those that occurred before."""
    unique: list[str] = []
    for name in names:
        free, number = name, 1
        while free in unique:
            number += 1
            free = f"{name}_{number}"
        unique.append(free)
    return unique
