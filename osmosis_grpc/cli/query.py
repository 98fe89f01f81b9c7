"""The query command: runs SQL over the views of a journal, and prints a table, records or CSV."""

import csv
import itertools
import math
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_grpc.cli.journal_views import VIEWS, VIEWS_VERSION
from osmosis_grpc.cli.query_database import Answer, Interrupted, QueryDatabase, QueryError
from osmosis_grpc.cli.screen import Screen, columns, wrapped
from osmosis_grpc.cli.usual_folder import run_folder, state_folder
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.journal_folder import doctor_hint
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.storage.journal.schema import FILE

RUNS = ".osmosis/runs"
"""Where test and eval keep their runs."""
TABLE_ROWS = 100
"""A table has at most this many rows, unless --limit names another number."""
MEASURED = 1000
"""The widths of a table's columns are those of its first rows, at most this many."""
GAP = "  "
NARROWEST = 20
"""No text of a table is cut to fewer columns. Rows that do not fit are printed one value a line."""
PIPE_WIDTH = 200
"""In a pipe, nothing is cut. Rows that are wider are printed one value a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The options of the command line, as they are given."""

    sql: str | None = None
    file: str | None = None
    state_dir: str | None = None
    run: str | None = None
    server: str | None = None
    csv: bool = False
    limit: int | None = None
    """0 means all."""
    timeout: float = 60.0


def run_query(given: QueryOptions, *, json: bool) -> int:
    """Run the query, print its rows, and return the exit code. Without a query, print the views."""
    if json and given.csv:
        usage_error("query", "--json and --csv exclude each other; name one of them")
    if given.server is not None:
        usage_error("query", "it asks a folder and no server; --state-dir names the state folder of the server")
    with records(json) as out, _quiet_when_the_reader_is_gone():
        sql = _sql(given)
        if sql is None:
            _print_views(out)
            return 0
        folder = _folder(given)
        try:
            with QueryDatabase(folder) as database:
                with database.select(sql, given.timeout) as answer:
                    _print(answer, given, out, json=json)
                if database.damaged:
                    say_error(
                        f"query: {database.damaged} of the rollouts are damaged, and values are missing; "
                        f"{doctor_hint(folder)}"
                    )
        except (QueryError, SourceError) as error:
            usage_error("query", printable(str(error)))
        except (Interrupted, KeyboardInterrupt):
            return 130
    return 0


@contextmanager
def _quiet_when_the_reader_is_gone() -> Iterator[None]:
    """End the process without a message when the reader of a pipe, such as head, has gone."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def _sql(given: QueryOptions) -> str | None:
    """Return the text of the query; None if there is none."""
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
            "query", f"{'stdin' if given.sql == '-' else given.file} is empty; osmosis-grpc query lists the views"
        )
    return text


def _folder(given: QueryOptions) -> Path:
    if given.run is None:
        folder = state_folder("query", given.state_dir)
        if given.state_dir is None and not (folder / FILE).exists() and next(Path(RUNS).glob(f"*/{FILE}"), None):
            usage_error("query", f"there is no journal in {folder}; --run last asks the newest run in {RUNS}")
        return folder
    if given.state_dir is not None:
        usage_error("query", "--run and --state-dir exclude each other; name one of them")
    return run_folder("query", given.run)


def _print(answer: Answer, given: QueryOptions, out: Records, *, json: bool) -> None:
    wanted = given.limit if given.limit is not None else 0 if json or given.csv else TABLE_ROWS
    rows = _Limited(answer.rows, wanted or math.inf)
    if json:
        for row in rows:
            out.write("row", row={name: plain(value) for name, value in zip(answer.columns, row, strict=True)})
        out.write("queried", rows=rows.count, more=rows.more, columns=answer.columns, views_version=VIEWS_VERSION)
    elif given.csv:
        _print_csv(answer.columns, rows)
    else:
        _print_table(answer.columns, rows, Screen.of(out))
    if rows.more and not json:
        say_error(f"query: there are more rows; --limit {2 * wanted} shows more, and --limit 0 shows all")


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
        cells = ["" if value is None else str(plain(value)) for value in row]
        writer.writerow([printable(cell, keep="\n") for cell in cells] if escaped else cells)
    sys.stdout.flush()


def _print_table(names: Sequence[str], rows: "_Limited", screen: Screen) -> None:
    """Print a table whose lines fit the screen, or one value a line if there are too many columns for that."""
    found = iter(rows)
    first = list(itertools.islice(found, MEASURED))
    table = _Columns.fitted(names, first, screen.width if sys.stdout.isatty() else None)
    if table is None:
        _print_values(names, itertools.chain(first, found), screen)
        return
    screen.say(table.line(names), "head")
    for row in itertools.chain(first, found):
        screen.say(table.line([cell(value) for value in row]))
    hint = "; long texts are cut, and --csv and --json print them whole" if table.has_cut else ""
    screen.say(f"({rows.count} row{'' if rows.count == 1 else 's'}{hint})", "note")


@dataclass(slots=True)
class _Columns:
    """The columns of a table."""

    widths: list[int]
    numbers: list[bool]
    """Numbers are at the right of their column."""
    texts: list[bool]
    """Texts with blanks may be cut; ids and other words may not."""
    has_cut: bool = False

    @classmethod
    def fitted(cls, names: Sequence[str], rows: Sequence[tuple[Any, ...]], most: int | None) -> "_Columns | None":
        """Return columns for lines of `most` columns, or None if lines do not fit. None as `most` means a pipe."""
        shown = [[cell(row[at]) for row in rows] for at in range(len(names))]
        heads = [columns(printable(name)) for name in names]
        widths = [max([head, *map(columns, cells)]) for head, cells in zip(heads, shown, strict=True)]
        texts = [most is not None and any(" " in text for text in cells) for cells in shown]
        least = [
            min(width, max(head, NARROWEST)) if text else width
            for width, head, text in zip(widths, heads, texts, strict=True)
        ]
        room = (most or PIPE_WIDTH) - len(GAP) * (len(names) - 1)
        if sum(least) > room:
            return None
        while sum(widths) > room:
            widest = max((at for at in range(len(names)) if widths[at] > least[at]), key=widths.__getitem__)
            widths[widest] -= 1
        numbers = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(names))]
        return cls(widths, numbers, texts)

    def line(self, cells: Sequence[str]) -> str:
        """Return one line."""
        parts = []
        for text, width, right, may_cut in zip(cells, self.widths, self.numbers, self.texts, strict=True):
            shown = _cut(text, width) if may_cut else text
            self.has_cut |= shown != text
            blank = " " * (width - columns(shown))
            parts.append(blank + shown if right else shown + blank)
        return GAP.join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    if columns(text) <= width:
        return text
    while columns(text) > width - 3:
        text = text[: min(len(text) - 1, width - 3)]
    return text + "..."


def cell(value: Any) -> str:
    """Return a value as one printable line."""
    if value is None:
        return ""
    if isinstance(value, float):
        short = f"{value:.6g}"
        return f"{value:.3f}" if "e+" in short and abs(value) < 1e15 else short
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
    """Print the views with their columns."""
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
    screen.say(f"views version {VIEWS_VERSION}; osmosis-grpc docs query has examples", "note")
