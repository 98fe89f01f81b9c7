"""JSON values: what may travel, and the text they travel as.

A JSON value is made of dict with str keys, list, str, int, float, bool and None, nests at
most 256 levels, and holds no NaN, no infinity and no unpaired surrogate. Everything that is
not so is refused with InvalidArgument naming the field, on the way in and on the way out.
"""

import json
import math
from typing import Any, NoReturn

from osmosis_grpc.errors import InvalidArgument

MAX_DEPTH = 256
"""Levels of lists and objects within one value."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


class _Refused(ValueError):
    pass


def copy(value: Any, field: str) -> Any:
    """A deep copy of a JSON value, checked on the way: later changes to `value` do not reach it.

    Tuples become lists. Raises InvalidArgument naming `field`.
    """
    return _copy(value, field, MAX_DEPTH)


def _copy(value: Any, field: str, levels: int) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, field)
        return value
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise InvalidArgument(field, f"{value} is not a JSON number")
        return value
    if levels == 0 and isinstance(value, dict | list | tuple):
        raise InvalidArgument(field, f"nests more than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgument(field, f"the key {key!r} is not a string")
            if not key.isascii():
                _check_text(key, field)
        return {key: _copy(item, field, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item, field, levels - 1) for item in value]
    if isinstance(value, str | int | float):  # subclasses, such as str enums
        return _copy(str(value) if isinstance(value, str) else value + 0, field, levels)
    raise InvalidArgument(field, f"a {kind.__name__} is not JSON")


def _check_text(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "holds an unpaired surrogate") from None


def render(value: Any) -> str:
    """The JSON text of a value that was checked before."""
    return _encode(value)


def canonical(value: Any) -> str:
    """The JSON text with sorted keys: equal for equal values, and only for those."""
    return _encode_sorted(value)


def parse(text: str, field: str) -> Any:
    """The value of a JSON text. Raises InvalidArgument naming `field`."""
    try:
        value = _decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _copy(value, field, MAX_DEPTH)
        if "\\u" in text:
            _encode(value).encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "holds an unpaired surrogate") from None
    except RecursionError:
        raise InvalidArgument(field, f"nests more than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from None
    return value


def parse_object(text: str, field: str) -> dict[str, Any]:
    """The object of a JSON text; an empty text is an empty object."""
    if not text:
        return {}
    value = parse(text, field)
    if not isinstance(value, dict):
        raise InvalidArgument(field, "is not a JSON object")
    return value


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused(f"{text} is out of range")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a key stands twice in one object")
    return value


_decode = json.JSONDecoder(parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique).decode
