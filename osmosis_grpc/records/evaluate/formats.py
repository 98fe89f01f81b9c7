"""Reads the objects of a dataset's file, one at a time: JSON, JSONL, CSV and Parquet.

Each object comes with its line and column. Only one row, or one batch of a Parquet file, is in memory at a time.
"""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.records.evaluate.errors import DatasetError

MAX_ROW = 64 * 1024 * 1024
"""The most characters of one row."""
CHUNK = 64 * 1024
"""How many bytes of a JSON file are read at once."""
BATCH = 256
"""How many rows of a Parquet file are in memory."""
NEAR_END = 16
"""A JSON error this close to the end of the text read so far, in characters, may mean that more must be read."""
SEPARATORS = {";": ";", "\t": "a tab", "|": "|"}
"""Separators that other programs use in CSV files, and their names in messages. Such files are refused."""
_SPACE = re.compile(r"[ \t\r\n]*")


class Raw(NamedTuple):
    """An unchecked object of a file, and where it is."""

    value: Any
    line: int
    """The line on which it begins or, in a Parquet file, the number of the row, from 1."""
    column: int = 0
    """The character at which it begins, from 1; 0 for the whole line."""


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_not_a_number)


def read_jsonl(path: Path) -> Iterator[Raw]:
    """Yield the value of each line that is not blank."""
    with path.open("rb") as file:
        for line, text in _lines(path, file):
            if not text.strip():
                continue
            try:
                yield Raw(_DECODER.decode(text), line)
            except json.JSONDecodeError as error:
                raise DatasetError(str(path), f"not JSON: {error.msg}", line, error.pos + 1) from None
            except (ValueError, RecursionError) as error:
                raise DatasetError(str(path), f"not JSON: {_reason(error)}", line) from None


def read_csv(path: Path) -> Iterator[Raw]:
    """Yield the rows of a CSV file. Its first row has the names of the columns."""
    before = csv.field_size_limit(MAX_ROW)
    try:
        with path.open("rb") as file:
            reader = csv.reader((text for _, text in _lines(path, file)), strict=True)
            yield from _csv_rows(path, reader)
    finally:
        csv.field_size_limit(before)


def _csv_rows(path: Path, reader: Any) -> Iterator[Raw]:
    names: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DatasetError(str(path), f"not CSV: {error}", line) from None
        if cells is None:
            return
        if not cells:  # a blank line
            continue
        if names is None:
            _check_separator(path, cells, line)
            names = [name.strip() for name in cells]
            _check_names(path, names, line)
        elif len(cells) == len(names):
            yield Raw(dict(zip(names, cells, strict=True)), line)
        else:
            problem = f"the row has {len(cells)} cells, and the header has {len(names)}; put quotes around commas"
            raise DatasetError(str(path), problem, line)


def _check_separator(path: Path, cells: list[str], line: int) -> None:
    """Raise DatasetError if the header is a single cell that contains another separator."""
    found = next((name for mark, name in SEPARATORS.items() if mark in cells[0]), None) if len(cells) == 1 else None
    if found:
        raise DatasetError(str(path), f"the separator is {found}, not ,: separate the cells by commas", line)


def _check_names(path: Path, names: list[str], line: int = 0) -> None:
    """Raise DatasetError if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        shown = ", ".join(name or "a column without a name" for name in twice)
        raise DatasetError(str(path), f"the header has a column twice: {shown}", line)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, with its line end."""
    number = 0
    while raw := file.readline(MAX_ROW + 1):
        number += 1
        if len(raw) > MAX_ROW:
            raise DatasetError(str(path), f"the line has more than {MAX_ROW} bytes", number)
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            column = len(raw[: error.start].decode(errors="replace")) + 1
            raise DatasetError(str(path), "not UTF-8; convert the file to UTF-8", number, column) from None


def read_json(path: Path) -> Iterator[Raw]:
    """Yield the items of a list, or the objects of a file that has one object after another."""
    with path.open("rb") as file:
        text = _Text(path, file)
        text.skip_space()
        is_list = text.peek() == "["
        if is_list:
            text.take()
            text.skip_space()
        while (character := text.peek()) and character != "]":
            place = text.line, text.column
            if character != "{":
                raise DatasetError(str(path), "a row is an object in braces; a dataset is a list of objects", *place)
            yield Raw(text.value(), *place)
            text.skip_space()
            if is_list and text.peek() == ",":
                text.take()
                text.skip_space()
                if text.peek() != "{":
                    text.fail("an object is missing after the comma")
            elif is_list and text.peek() != "]":
                text.fail("a comma or the end of the list is missing")
        if is_list:
            if text.peek() != "]":
                text.fail("the list does not end")
            text.take()
            text.skip_space()
        if text.peek():
            text.fail("there is more text after the end of the list")


class _Text:
    """A window of a JSON file's text: the part that is being parsed, and the line and column where it begins."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = self.column = 1

    def peek(self) -> str:
        """Return the next character, or an empty string at the end."""
        while self._at >= len(self._text) and not self._ended:
            self._more(CHUNK)
        return self._text[self._at : self._at + 1]

    def take(self, count: int = 1) -> None:
        """Skip the next characters."""
        taken = self._text[self._at : self._at + count]
        lines = taken.count("\n")
        self.column = len(taken) - taken.rindex("\n") if lines else self.column + count
        self.line += lines
        self._at += count

    def skip_space(self) -> None:
        """Skip white space."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self.take(found.end() - self._at)
            if self._at < len(self._text) or not self.peek():
                return

    def value(self) -> Any:
        """Parse and skip the next JSON value."""
        size = CHUNK
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - NEAR_END
                if self._ended or not cut:
                    self.take(error.pos - self._at)
                    self.fail(f"not JSON: {error.msg}")
            except (ValueError, RecursionError) as error:
                self.fail(f"not JSON: {_reason(error)}")
            else:
                self.take(end - self._at)
                return value
            if len(self._text) - self._at > MAX_ROW:
                self.fail(f"the row has more than {MAX_ROW} characters")
            self._more(size)
            size *= 2

    def fail(self, problem: str) -> NoReturn:
        """Raise DatasetError at this place."""
        raise DatasetError(str(self._path), problem, self.line, self.column)

    def _more(self, size: int) -> None:
        """Read the next bytes, and drop the text that is already parsed."""
        raw = self._file.read(size)
        self._ended = not raw
        try:
            new = self._decode.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            good = self._text[self._at :] + raw[: error.start].decode(errors="replace")
            self._text, self._at = good, 0
            self.take(len(good))
            self.fail("not UTF-8; convert the file to UTF-8")
        self._text, self._at = self._text[self._at :] + new, 0


def read_parquet(path: Path) -> Iterator[Raw]:
    """Yield the rows of a Parquet file. Raises MissingExtraError if pyarrow is not installed."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtraError(f"{path.name}: a Parquet file", "parquet") from None
    number = 0
    try:
        with path.open("rb") as opened, ParquetFile(opened) as file:  # pyarrow refuses a path that is not UTF-8
            _check_names(path, file.schema_arrow.names)
            for batch in file.iter_batches(BATCH):
                for value in batch.to_pylist():
                    number += 1
                    yield Raw(value, number)
    except (ArrowException, OSError) as error:
        raise DatasetError(str(path), f"not a Parquet file: {_reason(error)}", number) from None


READERS: dict[str, Callable[[Path], Iterator[Raw]]] = {
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
"""The readers, by the ending of the file's name."""


def _reason(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
