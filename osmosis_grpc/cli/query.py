"""The query command: runs SQL over the views of a journal, and prints a table, records or CSV."""

import csv
import decimal
import itertools
import math
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from osmosis_grpc.cli.command_options import QueryOptions
from osmosis_grpc.cli.daemon_thread import exit_after
from osmosis_grpc.cli.place import folder_of
from osmosis_grpc.cli.screen import Screen, columns, wrapped
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.query import VIEWS, VIEWS_VERSION, Interrupted, QueryDatabase, QueryError
from osmosis_grpc.records.query.database import Answer
from osmosis_grpc.records.reading.journal_folder import doctor_hint
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error

TABLE_ROWS = 100
"""The default of --limit for a table."""
MEASURED = 1000
"""A table's column widths are measured on this many rows."""
GAP = "  "
NUMBERS = (int, float, decimal.Decimal)
PIPE_WIDTH = 200
"""The width of a table in a pipe. A table that would be wider is printed with one value a line."""
GRACE = 5.0
"""The process exits this many seconds after the timeout, because a single SQL function cannot be interrupted."""


def run_query(given: QueryOptions, *, json: bool) -> int:
    """Run the query, print its rows, and return the exit code. Without a query, print the views."""
    if json and given.csv:
        usage_error("query", "--json and --csv exclude each other; name one of them")
    with records(json) as out, _quiet_when_the_reader_is_gone():
        sql = _sql(given)
        if sql is None:
            _print_views(out)
            return 0
        folder = folder_of("query", given.where, "it asks a folder and no server; --from names the server's folder")
        try:
            late = f"query: no answer within {given.timeout:g} s, and one of its functions cannot be interrupted"
            with exit_after(given.timeout + GRACE, late), QueryDatabase(folder) as database:
                with database.select(sql, given.timeout) as answer:
                    _print(answer, given, out, json=json)
                if database.damaged:
                    say_error(
                        f"query: {database.damaged} of the rollouts are damaged, and values are missing; "
                        f"{doctor_hint(folder)}"
                    )
        except (QueryError, SourceError, MissingExtraError) as error:
            usage_error("query", printable(str(error)))
        except (Interrupted, KeyboardInterrupt):
            return 130
    return 0


@contextmanager
def _quiet_when_the_reader_is_gone() -> Iterator[None]:
    """End the process without a message when the reader of stdout, such as head, closes the pipe."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def _sql(given: QueryOptions) -> str | None:
    if given.sql is not None and given.file is not None:
        usage_error("query", "SQL and --file exclude each other; name one of them")
    if given.sql == "-":
        text = sys.stdin.read()
    elif given.file is not None:
        try:
            text = Path(given.file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            usage_error("query", f"--file {given.file} cannot be read: {why}")
    else:
        return given.sql
    if not text.strip():
        usage_error(
            "query", f"{'stdin' if given.sql == '-' else given.file} is empty; for the views: osmosis-grpc query"
        )
    return text


def _print(answer: Answer, given: QueryOptions, out: Records, *, json: bool) -> None:
    wanted = given.limit if given.limit is not None else 0 if json or given.csv else TABLE_ROWS
    rows = _Limited(answer.rows, wanted or math.inf)
    if json:
        for row in rows:
            out.write("row", row={name: _plain(value) for name, value in zip(answer.columns, row, strict=True)})
        out.write("queried", rows=rows.count, more=rows.more, columns=answer.columns, views_version=VIEWS_VERSION)
    elif given.csv:
        _print_csv(answer.columns, rows)
    else:
        _print_table(answer.columns, rows, Screen.of(out))
    if rows.more and not json:
        say_error(f"query: there are more rows; --limit {2 * wanted} shows more, and --limit 0 shows all")


def _plain(value: Any) -> Any:
    """Return a value as JSON data. A Decimal, such as 1.5 in SQL, becomes a float."""
    return plain(float(value) if isinstance(value, decimal.Decimal) else value)


class _Limited:
    """Iterates over at most `limit` rows, and records whether there are more."""

    def __init__(self, rows: Iterator[tuple[Any, ...]], limit: float) -> None:
        self._rows = rows
        self._limit = limit
        self.count = 0
        self.more = False

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows:
            if self.count >= self._limit:
                self.more = True
                return
            self.count += 1
            yield row


def _print_csv(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Print CSV with a header. On a terminal, control characters are escaped."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    escaped = sys.stdout.isatty()
    for row in itertools.chain([names], rows):
        cells = ["" if value is None else str(_plain(value)) for value in row]
        writer.writerow([printable(cell, keep="\n") for cell in cells] if escaped else cells)
    sys.stdout.flush()


def _print_table(names: Sequence[str], rows: "_Limited", screen: Screen) -> None:
    """Print a table, or one value a line if the table does not fit the screen."""
    more = iter(rows)
    first = list(itertools.islice(more, MEASURED))
    cells = [[printable(name) for name in names], *([cell(value) for value in row] for row in first)]
    widths = [max(map(columns, column)) for column in zip(*cells, strict=True)]
    room = screen.width if sys.stdout.isatty() else PIPE_WIDTH
    if sum(widths) + len(GAP) * (len(names) - 1) > room:
        _print_values(names, itertools.chain(first, more), screen)
        return
    right = [any(isinstance(value, NUMBERS) for value in column) for column in zip(*first, strict=True)]
    right = right or [False] * len(names)

    def line(texts: Sequence[str]) -> str:
        blanks = [" " * (width - columns(text)) for text, width in zip(texts, widths, strict=True)]
        parts = [
            blank + text if at_right else text + blank
            for text, blank, at_right in zip(texts, blanks, right, strict=True)
        ]
        return GAP.join(parts).rstrip()

    screen.say(line(cells[0]), "head")
    for texts in itertools.chain(cells[1:], ([cell(value) for value in row] for row in more)):
        screen.say(line(texts))
    screen.say(f"({rows.count} row{'' if rows.count == 1 else 's'})", "note")


def cell(value: Any) -> str:
    """Return a value as one printable line."""
    if value is None:
        return ""
    if isinstance(value, float | decimal.Decimal):
        short = f"{value:.6g}"
        return f"{value:.3f}" if "e+" in short and abs(float(value)) < 1e15 else short
    return printable(str(plain(value)).expandtabs(4))


def _print_values(names: Sequence[str], rows: Iterable[tuple[Any, ...]], screen: Screen) -> None:
    """Print each row as a block with one value a line. On a terminal, long values are wrapped."""
    width = max(columns(printable(name)) for name in names)
    room = screen.width - 2 if sys.stdout.isatty() else sys.maxsize
    for number, row in enumerate(rows, 1):
        screen.say(f"row {number}", "head")
        for name, value in zip(names, row, strict=True):
            for line in wrapped(f"{name.ljust(width)}  {cell(value)}", room, width + 2):
                screen.say(f"  {line}".rstrip())


def _print_views(out: Records) -> None:
    for view in VIEWS.values():
        out.write(
            "view",
            views_version=VIEWS_VERSION,
            name=view.name,
            meaning=view.meaning,
            columns=[{"name": each.name, "type": each.type, "meaning": each.meaning} for each in view.columns],
        )
    screen = Screen.of(out)
    for view in VIEWS.values():
        screen.say(view.name, "head")
        for line in wrapped(view.meaning, screen.width - 2, 0):
            screen.say(f"  {line}")
        for each in view.columns:
            text = f"{each.name:<21}{each.type:<9}{each.meaning}"
            for line in wrapped(text, screen.width - 4, 30):
                screen.say(f"    {line}")
    screen.say(f"views version {VIEWS_VERSION}; for examples: osmosis-grpc docs query", "note")
