"""Converts values of users' code to JSON: results of tools, data for the trainer, rewards, logs.

| value | JSON |
|---|---|
| pydantic model, dataclass, Mapping | object |
| list, tuple, set (sorted), deque, range, array or tensor | list |
| NumPy or torch scalar, Fraction, Decimal | number; text if a number cannot hold the Decimal |
| Enum | its value |
| bytes | the text in UTF-8 |
| date, time, timedelta, UUID, path, URL, IP address | text |

A key that is not a string becomes the string that json.dumps writes for it. NaN and infinity are not JSON numbers.
"""

import dataclasses
import numbers
import os
import re
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, Set, ValuesView
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext

ARRAYS = frozenset({"numpy", "torch", "jax", "jaxlib", "tensorflow", "ml_dtypes", "cupy", "pandas"})
"""The packages whose values have the method tolist()."""

_BYTES = (bytes, bytearray, memoryview)
_LISTS = (Sequence, KeysView, ItemsView, ValuesView)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST_PLACE = 200
_LOGGED_LEVELS = 32
_CONSTANTS = {None: "null", True: "true", False: "false"}


class _NotJson(Exception):
    """A value that cannot be converted. `place` is the path to it, the last step first."""

    def __init__(self, problem: str, *, unknown: bool = False) -> None:
        self.problem = problem
        self.unknown = unknown
        """Whether the type has no conversion."""
        self.place: list[str] = []


Fallback = Callable[[Any, _NotJson], Any]


def to_json(value: Any, field: str, *, repair: bool = False) -> Any:
    """Return data as JSON. With `repair`, U+FFFD replaces unpaired surrogates.

    Raises InvalidArgument that names the place, such as `field.loss[3]`, and the problem.
    """
    return _placed(_Walk(_refuse, repair=repair), value, field)


def text_of(value: Any, field: str) -> str | None:
    """Return data as a string, such as a label. A string and None stay, others become JSON. Raises InvalidArgument."""
    made = to_json(value, field)
    return made if made is None or isinstance(made, str) else jsontext.render(made)


def readable(value: Any, field: str) -> Any:
    """Return a value that a model reads as JSON.

    Unpaired surrogates and bytes that are not UTF-8 become U+FFFD. An object that cannot be converted becomes its
    str(), unless that contains the object's address. Raises InvalidArgument that names the place.
    """
    return _placed(_Walk(_own_text, repair=True, undecodable="replace"), value, field)


def loggable(value: Any, *, objects: bool = False) -> Any:
    """Return a value for a log as JSON. What cannot be converted becomes its repr. Never raises.

    Without `objects`, a model or a dataclass becomes its repr, too: authors keep secrets out of a repr.
    """
    return _Walk(_repr, objects=objects)(value, _LOGGED_LEVELS)


def number_of(value: object) -> float | None:
    """Return a finite number as a float, and None for any other value.

    A bool counts as 1 or 0. NumPy and torch scalars, Decimal and Fraction are numbers; arrays, lists and strings are
    not.
    """
    if getattr(value, "ndim", None) == 0 and _is_array(value):
        value = value.tolist()  # type: ignore[attr-defined] # None for a masked value, whose item() is 0.0
    try:
        number = float(value) if isinstance(value, numbers.Real | Decimal) else None
    except (OverflowError, ValueError):  # too large, or a signaling NaN
        return None
    return number if number is not None and jsontext.is_finite(number) else None


def _placed(walk: "_Walk", value: Any, field: str) -> Any:
    try:
        return walk(value, jsontext.MAX_DEPTH)
    except _NotJson as error:
        place = "".join(reversed(error.place))
        place = place if len(place) <= _MOST_PLACE else f"{place[:_MOST_PLACE]}…"
        raise InvalidArgument(jsontext.repaired(field + place), error.problem) from None


class _Walk:
    """Converts a value. If that fails, `fallback` returns a replacement or raises the error that it gets."""

    __slots__ = ("_fallback", "_objects", "_repair", "_undecodable")

    def __init__(
        self, fallback: Fallback, *, repair: bool = False, undecodable: str = "strict", objects: bool = True
    ) -> None:
        self._fallback = fallback
        self._repair = repair
        """Whether U+FFFD replaces unpaired surrogates."""
        self._undecodable = undecodable
        """The error handler for bytes that are not UTF-8."""
        self._objects = objects
        """Whether models and dataclasses have a conversion."""

    def __call__(self, value: Any, levels: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        try:
            if kind is str:
                return value if value.isascii() else self._text(value)
            if kind is int or kind is float:
                return _number(value)
            if levels <= 0:
                raise _NotJson(f"nests more than {jsontext.MAX_DEPTH} levels")
        except _NotJson as error:
            return self._fallback(value, error)
        if isinstance(value, Mapping):
            return self._object(value, levels)
        if isinstance(value, _LISTS) and not isinstance(value, (str, *_BYTES)):
            return self._list(value, levels)
        if isinstance(value, Set):
            return sorted(self._list(value, levels), key=jsontext.canonical)
        try:
            found = self._converted(value)
        except _NotJson as error:
            return self._fallback(value, error)
        except Exception as error:  # the value's own methods may raise anything
            return self._fallback(value, _NotJson(f"a {kind.__name__} cannot be read: {type(error).__name__}: {error}"))
        return self(found, levels - 1)

    def _object(self, value: Mapping[Any, Any], levels: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = key
            try:
                if type(key) is not str or not key.isascii():
                    name = self._key(key)
                if name in made:
                    raise _NotJson(f"has the key {name!r:.80} twice")
            except _NotJson as error:
                name = self._fallback(key, error)
            try:
                made[name] = self(item, levels - 1)
            except _NotJson as error:
                error.place.append(f".{name}")
                raise
        return made

    def _list(self, value: Any, levels: int) -> list[Any]:
        made: list[Any] = []
        for item in value:
            try:
                made.append(self(item, levels - 1))
            except _NotJson as error:
                error.place.append(f"[{len(made)}]")
                raise
        return made

    def _key(self, key: Any) -> str:
        if key is None or type(key) is bool:
            return _CONSTANTS[key]
        if isinstance(key, tuple | frozenset):
            raise _NotJson(f"the key {key!r:.80} is not a string")
        plain = self(key, 1)
        return plain if isinstance(plain, str) else jsontext.render(plain)

    def _text(self, text: str) -> str:
        if self._repair:
            return jsontext.repaired(text)
        try:
            return jsontext.check_text(text, "")
        except InvalidArgument as error:
            raise _NotJson(error.violations[0][1]) from None

    def _converted(self, value: Any) -> Any:
        """Convert a value that is not a list, object or plain scalar to one of these. Raises _NotJson."""
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        for plain in (str, int, float):
            if isinstance(value, plain):
                return plain.__str__(value) if plain is str else plain(value)
        if isinstance(value, _BYTES):
            try:
                return bytes(value).decode(errors=self._undecodable)
            except UnicodeDecodeError:
                raise _NotJson("the bytes are not UTF-8; encode them, for example in base64") from None
        if _is_array(value):
            return _listed(value)
        if isinstance(value, Decimal | Fraction):
            return _fraction(value)
        kind = type(value)
        model = hasattr(kind, "__pydantic_serializer__") and callable(getattr(value, "model_dump", None))
        if self._objects and model:
            return value.model_dump(by_alias=True, warnings="none")
        record = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if self._objects and record:
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _leaf(value, known=not model and not record)


def _number(value: float) -> float:
    if isinstance(value, float):
        if not jsontext.is_finite(value):
            name = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
            raise _NotJson(f"{name} is not JSON number")
    elif not jsontext.is_short(value):
        raise _NotJson(f"a whole number of more than {jsontext.MAX_DIGITS} digits cannot be sent")
    return value


def _fraction(value: Decimal | Fraction) -> float | str:
    """Return the number closest to a Fraction, or the exact number or string of a Decimal."""
    if isinstance(value, Fraction):
        return float(value) if value.denominator != 1 else value.numerator
    if not value.is_finite():
        return float("nan") if value.is_nan() else float(value)
    near = float(value)
    if value == value.to_integral_value() and abs(near) < 1 << 63:
        return int(value)
    return near if jsontext.is_finite(near) and Decimal(repr(near)) == value else str(value)


def _is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ARRAYS and callable(getattr(value, "tolist", None))


def _listed(value: Any) -> Any:
    """Return an array or a scalar of an array package as lists and scalars of Python."""
    if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m"):  # times, as ISO strings instead of nanoseconds
        return value.astype(str).tolist()
    made = value.tolist()
    if type(made) is type(value):  # such as a longdouble, for which Python has no type
        return float(made)
    return made


def _leaf(value: Any, *, known: bool) -> Any:
    """Return a date, a UUID, a path or another value of Python's library as a text. Raises _NotJson."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # late: commands start without pydantic

    advice = "return a dict, a list, a number or a text"
    unknown = _NotJson(f"is of the type {type(value).__name__}, which has no JSON; {advice}", unknown=True)
    if not known or hasattr(value, "__next__"):  # a generator is not read: it may have no end
        raise unknown
    try:
        made = to_jsonable_python(value)
    except (PydanticSerializationError, ValueError):
        raise unknown from None
    if not isinstance(made, str):
        raise unknown
    return made


def _refuse(value: Any, error: _NotJson) -> Any:
    raise error


def _own_text(value: Any, error: _NotJson) -> str:
    if error.unknown:
        text = str(value)
        if not _ADDRESS.search(text):
            return jsontext.repaired(text)
    raise error


def _repr(value: Any, error: _NotJson) -> str:
    if isinstance(value, str):
        return jsontext.repaired(value)
    try:
        return jsontext.repaired(repr(value))
    except Exception:
        return f"a {type(value).__name__} without a repr"
