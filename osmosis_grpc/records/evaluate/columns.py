"""Finds the messages, the label and the metadata in an object of a dataset.

Three formats are supported: the columns of the Osmosis SDK (`user_prompt`, `system_prompt`, `ground_truth`), rows of
verl (`prompt` with messages, `reward_model.ground_truth`), and lists of messages (`messages` or `prompt`). The names
of columns are case-insensitive.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message, jsontext
from osmosis_grpc.protocol.types.messages import copy_messages

FIELDS = ("user_prompt", "system_prompt", "messages", "ground_truth", "metadata")
"""The fields that a column can be mapped to."""
LABELS = ("ground_truth", "label", "reward_model.ground_truth")
"""The columns that may contain the reference answer. The first one that is not null is used."""
PROMPTS = ("messages", "prompt")
"""The columns that may contain a list of messages or a text."""
ROW_INDEX = "row_index"
"""The key of the row's number in the metadata."""
SHOWN = 12
"""How many columns an error lists at most."""


class ColumnError(Exception):
    """A column is missing or has an invalid value. `field` names the column."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def parse_map(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse texts COLUMN=FIELD to a mapping from field to column. Raises ValueError."""
    found: dict[str, str] = {}
    for text in texts:
        column, equals, field = text.rpartition("=")
        if not equals or not column:
            raise ValueError(f"{text!r} is not COLUMN=FIELD, for example question=user_prompt")
        if field not in FIELDS:
            raise ValueError(f"{field!r} is not a field; the fields are: {', '.join(FIELDS)}")
        if field in found:
            raise ValueError(f"two columns are given for {field}: {found[field]} and {column}")
        found[field] = column
    return found


class Columns:
    """Extracts the fields of one object. `mapped` maps fields to columns, as the user asked."""

    def __init__(self, raw: Mapping[str, Any], mapped: Mapping[str, str]) -> None:
        self._raw = raw
        self._mapped = mapped
        self._names: dict[str, str] = {}
        for name in raw:
            other = self._names.setdefault(name.lower(), name)
            if other != name and name.lower() in (*FIELDS, *LABELS, *PROMPTS):
                raise ColumnError(name, f"the row also has {other}; keep one of them")
        self._used: set[str] = set()
        """The columns that were read as fields, and so are not metadata."""

    def messages(self) -> list[Message]:
        """Return the conversation to start from."""
        column, value = self._first("user_prompt")
        system_column, system = self._first("system_prompt")
        if column:
            made = [{"role": "user", "content": _text(column, value)}]
        else:
            column, value = self._first("messages", *PROMPTS)
            if not column:
                raise ColumnError("", self._no_prompt())
            if isinstance(value, str):
                made = [{"role": "user", "content": _text(column, value)}]
            else:
                made = _conversation(column, value)
        if system is not None and system != "":  # an empty cell of a CSV file is not a system prompt
            made.insert(0, {"role": "system", "content": _text(system_column, system)})
        return made

    def label(self) -> str | None:
        """Return the reference answer, or None if it is missing or empty. Numbers and lists become JSON texts."""
        mapped = "ground_truth" in self._mapped
        for column, raw in [self._first("ground_truth")] if mapped else map(self._at, LABELS):
            value = _plain(column, raw)
            if value is _LEFT_OUT:
                raise ColumnError(column, "has bytes, not a text")
            if value is not None and value != "":  # an empty cell of a CSV file is not an answer
                return value if isinstance(value, str) else jsontext.render(value)
        return None

    def metadata(self, number: int, label: str | None) -> dict[str, Any]:
        """Return the other columns, the label as `ground_truth`, and the row's number as `row_index`."""
        made: dict[str, Any] = {ROW_INDEX: number}  # so that it is the first key
        column, value = self._first("metadata")
        if isinstance(value, str):  # a cell of a CSV file
            try:
                value = jsontext.parse_object(value.strip(), column)
            except InvalidArgument as error:
                raise ColumnError(column, error.violations[0][1]) from None
        if value is not None and not isinstance(value, Mapping):
            raise ColumnError(column, f"is {kind_of(value)}, not an object")
        for name, item in self._raw.items():
            if name not in self._used:
                found = _plain(name, item)
                if found is not _LEFT_OUT:
                    made[name] = found
        made |= dict(_plain(column, value)) if value else {}
        made[ROW_INDEX] = number  # again, in case a column has this name
        return made if label is None else made | {"ground_truth": label}

    def _first(self, field: str, *names: str) -> tuple[str, Any]:
        """Return the column of a field and its value, or an empty string and None.

        If the user has mapped the field, its column is used. Otherwise, the first of `names` that the row has is used.
        Without `names`, the column has the name of the field.
        """
        if field in self._mapped:
            column, value = self._at(self._mapped[field])
            if not column:
                raise ColumnError("", f"has no column {self._mapped[field]}; it has: {self._known()}")
            return column, value
        for name in names or (field,):
            column, value = self._at(name)
            if column:
                return column, value
        return "", None

    def _at(self, path: str) -> tuple[str, Any]:
        """Return the name and the value at a path: a column, or a key inside it such as reward_model.ground_truth.

        A column whose whole name is the path comes first, because names may contain dots. Such a column is then no
        longer part of the metadata.
        """
        whole = self._names.get(path.lower())
        if whole is not None:
            self._used.add(whole)
            return whole, self._raw[whole]
        value: Any = self._raw
        found: list[str] = []
        for part in path.split("."):
            if not isinstance(value, Mapping):
                return "", None
            name = next((name for name in value if isinstance(name, str) and name.lower() == part.lower()), None)
            if name is None:
                return "", None
            found.append(name)
            value = value[name]
        return ".".join(found), value

    def _known(self) -> str:
        names = list(map(str, self._raw))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more if names else "none"

    def _no_prompt(self) -> str:
        fields = {*FIELDS, *LABELS, *PROMPTS}
        first = next((name for name in self._raw if str(name).lower() not in fields), "COLUMN")
        return (
            f"has no column user_prompt, messages or prompt; it has: {self._known()}; "
            f"name one: --map {first}=user_prompt"
        )


def _conversation(column: str, value: Any) -> list[Message]:
    """Return checked messages. Drop null values, which stand for missing keys in Parquet files."""
    if isinstance(value, Mapping) or not isinstance(value, list | tuple):
        raise ColumnError(column, f"is {kind_of(value)}, not a text or a list of messages")
    if not value:
        raise ColumnError(column, "is an empty list")
    try:
        messages = [
            {key: _full(item) for key, item in message.items() if item is not None or key == "content"}
            if isinstance(message, Mapping)
            else message
            for message in value
        ]
        return copy_messages(messages, column)
    except InvalidArgument as error:
        path, problem = error.violations[0]
        raise ColumnError(path, problem) from None
    except RecursionError:
        raise ColumnError(column, "is nested too deeply") from None


def _full(value: Any) -> Any:
    """Drop the null values from the parts or the tool calls of a message."""
    if isinstance(value, Mapping):
        return {key: _full(item) for key, item in value.items() if item is not None}
    return [_full(item) for item in value] if isinstance(value, list | tuple) else value


def _text(column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ColumnError(column, f"is {kind_of(value)}, not a text")
    if not value.strip():
        raise ColumnError(column, "is empty")
    return value


_LEFT_OUT = object()


def _plain(column: str, value: Any) -> Any:
    """Convert a value to JSON. Times become texts, NaN becomes null, and bytes are left out."""
    try:
        made = _json(value)
        return made if made is _LEFT_OUT else jsontext.copy(made, column)
    except InvalidArgument as error:
        path, problem = error.violations[0]
        raise ColumnError(path, problem) from None
    except RecursionError:
        raise ColumnError(column, "is nested too deeply") from None


def _json(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return dict(_items(value))
    if isinstance(value, list | tuple):
        return [item for item in map(_json, value) if item is not _LEFT_OUT]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return _LEFT_OUT if isinstance(value, bytes) else value


def _items(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items():
        made = _json(item)
        if made is not _LEFT_OUT:
            yield key, made


def kind_of(value: Any) -> str:
    """Return the name of a value's type in JSON."""
    if value is None:
        return "null"
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), f"a {type(value).__name__}")
