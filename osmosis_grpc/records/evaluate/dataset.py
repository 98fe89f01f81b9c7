"""Reads the rows of a dataset, which is a file or an environment, one at a time. Rows can be chosen by number."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from osmosis_grpc.environments.spec import PREFIX
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.records.evaluate.columns import ColumnError, Columns
from osmosis_grpc.records.evaluate.errors import DatasetError
from osmosis_grpc.records.evaluate.formats import READERS, Raw
from osmosis_grpc.records.evaluate.inputs import digest_of, digest_of_environment
from osmosis_grpc.records.evaluate.task_datasets import read_environment, read_tasks

Chosen = Callable[[int], bool]


class RowChoice:
    """The rows chosen by a text such as 3,7,10-20. Ranges include both ends. Raises ValueError for a malformed text."""

    def __init__(self, text: str) -> None:
        self._ranges = [_range(text, part.strip()) for part in text.split(",")]

    def __call__(self, number: int) -> bool:
        """Return whether the row with this number is chosen."""
        return any(number in chosen for chosen in self._ranges)

    @property
    def last(self) -> int:
        """The highest chosen number."""
        return max(chosen[-1] for chosen in self._ranges)

    def after(self, count: int) -> int | None:
        """Return the chosen number at index `count` in ascending order, or None if fewer numbers are chosen."""
        reached = -1
        for chosen in sorted(self._ranges, key=lambda each: each.start):
            new = range(max(chosen.start, reached + 1), chosen.stop)
            if count < len(new):
                return new[count]
            count -= len(new)
            reached = max(reached, chosen[-1])
        return None


def _range(text: str, part: str) -> range:
    first, dash, last = part.partition("-")
    numbers = [number.strip() for number in ((first, last) if dash else (first, first))]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{text!r} has {part!r}, which is neither a row nor a range; an example is 3,7,10-20")
    chosen = range(int(numbers[0]), int(numbers[1]) + 1)
    if not chosen:
        raise ValueError(f"{text!r} has the range {part}, which ends before it begins")
    return chosen


def every(number: int) -> bool:
    """Choose every row."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a dataset, converted to what a rollout needs."""

    number: int
    """The number of the row in the file, from 0."""
    line: int
    """The line on which the row begins or, in a Parquet file, the number of the row, from 1."""
    messages: list[Message]
    """The conversation to start from."""
    label: str | None = None
    """The reference answer."""
    metadata: Mapping[str, Any]
    """The other columns, the label as `ground_truth`, and the row's number as `row_index`."""
    attempt: int = 1
    """The attempt of the row's rollout, which increases if the rollout is repeated."""
    run_index: int = 0
    """The index of this rollout among the `runs` of the row, from 0."""
    runs: int = 1
    """How many rollouts the row gets."""

    @property
    def key(self) -> str:
        """The row's number, followed by `run_index` if the row has several runs."""
        return str(self.number) if self.runs == 1 else f"{self.number}.{self.run_index}"


class Dataset:
    """The rows of a .json, .jsonl, .csv or .parquet file, a folder of Harbor tasks, or an environment (env:KIND:NAME).

    `columns` maps fields to columns (see columns.parse_map). Parquet needs the extra `parquet`.

    Raises DatasetError if the file is missing or its name has another ending.
    """

    def __init__(self, path: str | Path, columns: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self.name = text if (text := str(path)).startswith(PREFIX) else str(self.path)
        """The path, or env:KIND:NAME for an environment."""
        self._columns = dict(columns or {})
        self._is_environment = self.name.startswith(PREFIX)
        if self._is_environment:
            self._read: Callable[[], Iterator[Raw]] = partial(read_environment, self.name)
            return
        is_folder = self.path.is_dir()
        reader = read_tasks if is_folder else READERS.get(self.path.suffix.lower())
        if reader is None:
            raise DatasetError(str(path), f"not a dataset; the name ends with one of {', '.join(READERS)}")
        if not is_folder and not self.path.is_file():
            raise DatasetError(str(path), "there is no such file")
        self._read = partial(reader, self.path)

    def digest(self) -> str:
        """Return the digest of the file or, for an environment, of its name and version. Raises OSError."""
        return digest_of_environment(self.name) if self._is_environment else digest_of(self.path)

    def rows(self, offset: int = 0, limit: int | None = None, chosen: Chosen = every) -> Iterator[Row]:
        """Yield the chosen rows among the `limit` rows that begin at row `offset`.

        Only these rows are checked. Raises DatasetError at an invalid row.
        """
        number = 0
        try:
            for raw in self._read():
                if limit is not None and number >= offset + limit:
                    return
                if number >= offset and chosen(number):
                    yield self._row(raw, number)
                number += 1
        except OSError as error:
            raise DatasetError(self.name, f"cannot be read: {error.strerror or error}") from None

    def check(self, offset: int = 0, limit: int | None = None, chosen: Chosen = every) -> int:
        """Read the rows, and return their number. Raises DatasetError if one is invalid or there are none."""
        count = sum(1 for _ in self.rows(offset, limit, chosen))
        if not count:
            none = "has no rows" if chosen is every else "has none of the chosen rows"
            raise DatasetError(self.name, f"has no row {offset}; they are counted from 0" if offset else none)
        return count

    def _row(self, raw: Raw, number: int) -> Row:
        if not isinstance(raw.value, dict):
            raise DatasetError(self.name, "the row is not an object with columns", raw.line, raw.column)
        try:
            columns = Columns(raw.value, self._columns)
            messages, label = columns.messages(), columns.label()
            metadata = columns.metadata(number, label)
        except ColumnError as error:
            raise DatasetError(self.name, str(error), raw.line, raw.column, error.field) from None
        return Row(number=number, line=raw.line, messages=messages, label=label, metadata=metadata)
