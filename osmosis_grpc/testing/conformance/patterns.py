"""Compares received data with what a case expects.

An expectation is data. A dict expects at least its keys. A list expects exactly its elements, in order. A scalar
expects an equal scalar; numbers that are not integers are compared with the precision of float32. A text that is
compared with a status is the name of its code. A dict with one key that begins with `$` is an operator of the table
below. docs/conformance.md lists the operators.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from osmosis_grpc.testing.conformance.protobuf_data import CaseError

Saved = dict[str, Any]
MISSING = object()
"""The value of a field that is missing."""


def differences(expected: Any, got: Any, saved: Saved, path: str = "") -> Iterator[str]:
    """Yield a line for each difference. Store the values of `$save` in `saved`."""
    if isinstance(expected, Mapping) and len(expected) == 1 and next(iter(expected)).startswith("$"):
        name, argument = next(iter(expected.items()))
        if name not in OPERATORS:
            raise CaseError(f"{path}: there is no operator {name}; there are {', '.join(OPERATORS)}")
        yield from OPERATORS[name](argument, got, saved, path)
    elif got is MISSING:
        yield f"{path}: is missing; expected {_short(expected)}"
    elif isinstance(expected, Mapping):
        yield from _mapping(expected, got, saved, path)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        yield from _list(expected, got, saved, path)
    elif not equal(expected, got):
        yield f"{path}: expected {_short(expected)}, got {_short(got)}"


def equal(expected: Any, got: Any) -> bool:
    """Return whether a scalar is as expected. `got` may also be a 64-bit integer as a text, or a whole status."""
    if isinstance(got, Mapping) and isinstance(expected, str):
        return bool(got.get("code") == expected)
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int) and isinstance(got, str):
        return str(expected) == got
    if isinstance(expected, float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-6, abs_tol=1e-9)
    return bool(expected == got)


def _mapping(expected: Mapping[str, Any], got: Any, saved: Saved, path: str) -> Iterator[str]:
    if not isinstance(got, Mapping):
        yield f"{path}: expected an object, got {_short(got)}"
        return
    for key, value in expected.items():
        yield from differences(value, got.get(key, MISSING), saved, f"{path}.{key}".lstrip("."))


def _list(expected: Sequence[Any], got: Any, saved: Saved, path: str) -> Iterator[str]:
    if not isinstance(got, list):
        yield f"{path}: expected a list, got {_short(got)}"
    elif len(expected) != len(got):
        yield f"{path}: expected {len(expected)} elements, got {len(got)}: {_short(got)}"
    else:
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, saved, f"{path}[{index}]")


def _checked(holds: Callable[[Any, Any], bool], words: str) -> Callable[[Any, Any, Saved, str], Iterator[str]]:
    """Return an operator that checks a value with `holds`. It fails for a missing value."""

    def operator(argument: Any, got: Any, _saved: Saved, path: str) -> Iterator[str]:
        if got is MISSING or not holds(argument, got):
            shown = "nothing" if got is MISSING else _short(got)
            yield f"{path}: expected {words} {_short(argument)}, got {shown}"

    return operator


def _absent(_argument: Any, got: Any, _saved: Saved, path: str) -> Iterator[str]:
    if got is not MISSING:
        yield f"{path}: expected no value, got {_short(got)}"


def _save(name: str, got: Any, saved: Saved, path: str) -> Iterator[str]:
    if got is MISSING:
        yield f"{path}: is missing"
    else:
        saved[name] = got


def _has(items: list[Any], got: Any, saved: Saved, path: str) -> Iterator[str]:
    found = got if isinstance(got, list) else []
    for item in items:
        if all(any(True for _ in differences(item, each, saved)) for each in found):
            yield f"{path}: expected an element {_short(item)}, got {_short(found)}"


def _not(expected: Any, got: Any, saved: Saved, path: str) -> Iterator[str]:
    if not any(True for _ in differences(expected, got, saved, path)):
        yield f"{path}: expected anything but {_short(expected)}"


def _all(items: list[Any], got: Any, saved: Saved, path: str) -> Iterator[str]:
    for item in items:
        yield from differences(item, got, saved, path)


def _is_json(expected: Any, got: Any) -> bool:
    try:
        return json_equal(expected, json.loads(got or "{}"))
    except (ValueError, TypeError):
        return False


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. Numbers are compared by value, and a bool is not a number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def _number(value: Any) -> float:
    """Return a number, the seconds of a duration such as 1.5s, or the length of a list. Return NaN for other values."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, list):
        return len(value)
    match = re.fullmatch(r"(-?[\d.]+)s?", value) if isinstance(value, str) else None
    return float(match[1]) if match else math.nan


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 300 else f"{text[:297]}..."


OPERATORS: dict[str, Callable[[Any, Any, Saved, str], Iterator[str]]] = {
    "$any": _checked(lambda _argument, _got: True, "any value"),
    "$absent": _absent,
    "$save": _save,
    "$in": _checked(lambda choices, got: any(equal(each, got) for each in choices), "one of"),
    "$at_least": _checked(lambda least, got: _number(got) >= least, "at least"),
    "$at_most": _checked(lambda most, got: _number(got) <= most, "at most"),
    "$count": _checked(lambda count, got: len(got) == count, "this number of elements:"),
    "$length": _checked(lambda bounds, got: bounds[0] <= len(got) <= bounds[1], "a length within"),
    "$matches": _checked(lambda regex, got: re.search(regex, str(got)) is not None, "a text that matches"),
    "$json": _checked(_is_json, "JSON text with the value"),
    "$has": _has,
    "$not": _not,
    "$all": _all,
}
"""The operators by name."""
