"""JSON values that can be sent, and their text.

A JSON value consists of dict with str keys, list, str, int, float, bool and None. It nests at most 256 levels, and has
no NaN, no infinity and no unpaired surrogate. The sender and the receiver refuse any other value with an
InvalidArgument that names the field.
"""

import contextlib
import gc
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.tensors import np

MAX_DEPTH = 256
"""Levels of lists and objects within one value."""

MAX_DIGITS = 4300
"""The most digits that Python parses."""
_TOO_LARGE: int = 10**MAX_DIGITS
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""An empty, read-only object. All values with an empty object share it."""
_ITEM_BYTES = 64
"""The approximate memory of a list, an object or one item, in bytes."""
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]")
"""The escapes of surrogates, of which a pair is one character."""
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
"""The change of the level at each byte, as int8: 1 at an opening bracket, -1 at a closing bracket."""
_NESTED = (dict, list, tuple)
_LARGE = 16 * 1024
"""A text of at least this many characters may have enough objects for several passes of the garbage collector."""
DIGEST_BYTES = 16
_PLAIN: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


def copy(value: Any, field: str, levels: int = MAX_DEPTH) -> Any:
    """Return a checked deep copy of a JSON value. Later changes of `value` do not change the copy.

    Tuples become lists, and values of subclasses become the plain types. Raises InvalidArgument naming `field`.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else check_text(value, field)
    if value is None or kind is bool:
        return value
    if kind is int:
        if not is_short(value):
            raise InvalidArgument(field, f"a whole number of more than {MAX_DIGITS} digits cannot be sent")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise InvalidArgument(field, f"{value} is not JSON number")
        return value
    if isinstance(value, _NESTED):
        if levels == 0:
            raise InvalidArgument(field, f"nests more than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return {
                check_key(key, field): item if type(item) is str and item.isascii() else copy(item, field, levels - 1)
                for key, item in value.items()
            }
        return [copy(item, field, levels - 1) for item in value]
    for plain in (str, int, float):
        if isinstance(value, plain):
            return copy(_PLAIN[plain](value), field, levels)
    raise InvalidArgument(field, f"a {kind.__name__} is not JSON")


def check_key(key: Any, field: str) -> str:
    """Return a key as a plain str. Raises InvalidArgument naming `field` for a key that is not a valid text."""
    if type(key) is str and key.isascii():
        return key
    if not isinstance(key, str):
        raise InvalidArgument(field, f"the key {key!r} is not a string")
    return check_text(str.__str__(key), field)


def check_text(text: str, field: str) -> str:
    """Return the text. Raises InvalidArgument naming `field` if it cannot be written as UTF-8."""
    if not _is_text(text):
        raise InvalidArgument(field, "has an unpaired surrogate")
    return text


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def repaired(text: str) -> str:
    """Return a text that can be written as UTF-8: U+FFFD for each unpaired surrogate, one character for each pair."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def render(value: Any) -> str:
    """Return the JSON text of a value that was checked before."""
    return _encode(value)


def canonical(value: Any) -> str:
    """Return a JSON text that is the same for equal values: sorted keys, and one spelling for each number."""
    return _encode_sorted(_one_spelling(value))


def digest(value: Any) -> bytes:
    """Return a digest that is the same for equal values."""
    return _digest_of(canonical(value))


def _digest_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


@contextlib.contextmanager
def large_value() -> Iterator[None]:
    """Keep the garbage collector from running while a large value is read or written.

    JSON values have no cycles. For a megabyte of small lists, the passes take several times as long as the work itself.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _one_spelling(value: Any) -> Any:
    """Return the value with a whole number instead of each float without a fraction: 1 for 1.0."""
    kind = type(value)
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return {key: _one_spelling(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_one_spelling(item) for item in value]
    return value


def parse(text: str, field: str, levels: int = MAX_DEPTH, *, repair: bool = False) -> Any:
    """Return the value of a JSON text. Raises InvalidArgument naming `field` for another text.

    The text has at most `levels` levels. With `repair`, U+FFFD replaces unpaired surrogates; otherwise they are
    refused.
    """
    if len(text) < _LARGE:
        return _parsed(text, field, levels, repair=repair)
    with large_value():
        return _parsed(text, field, levels, repair=repair)


def parse_reply(text: str | bytes, field: str) -> Any:
    """Return the value of a JSON text as parse() does, several times as fast.

    It is for the replies of model servers, which have an object for each token. If an object has a key twice, the last
    value counts. A number that is too large for a float is infinite, so copy() has to check what is passed on.
    """
    from pydantic_core import from_json  # not every process that imports this module needs it

    try:
        with large_value():
            return from_json(text, allow_inf_nan=False)
    except ValueError:  # with another limit of levels, and without the place of an error
        return parse(text if isinstance(text, str) else text.decode(), field)


def _parsed(
    text: str, field: str, levels: int, decode: Callable[[str], Any] | None = None, *, repair: bool = False
) -> Any:
    try:
        value = (decode or _decode)(text)
        if text.count("[") + text.count("{") > levels and _depth(text) > levels:
            raise InvalidArgument(field, f"nests more than {MAX_DEPTH} levels")
        if _SURROGATES.search(text) and not _is_text(_encode(value)):
            value = _checked_texts(value, field, "", repair=repair)
    except RecursionError:
        raise InvalidArgument(field, f"nests more than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from None
    return value


def _checked_texts(value: Any, field: str, place: str, *, repair: bool) -> Any:
    """Return the value without unpaired surrogates. Without `repair`, raises InvalidArgument.

    The error names `field` or, if the value is a whole body, the place in it.
    """
    if isinstance(value, dict):
        dot = "." if place else ""
        keys = [_checked_texts(key, field, place, repair=repair) for key in value]
        return {
            key: _checked_texts(item, field, f"{place}{dot}{key}", repair=repair)
            for key, item in zip(keys, value.values(), strict=True)
        }
    if isinstance(value, list):
        return [_checked_texts(item, field, f"{place}[{index}]", repair=repair) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    return repaired(value) if repair else check_text(value, field or place)


def _depth(text: str) -> int:
    steps = np.frombuffer(_STRINGS.sub("", text).encode().translate(_STEPS), np.int8)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


class Unparsed:
    """A JSON object that is kept as its text. The text was checked before, and takes much less memory than the object.

    value() calls `read` with the approximate memory of the object in bytes, and then parses the text.
    """

    __slots__ = ("_read", "digest", "text")

    def __init__(self, text: str, digest: bytes, read: Callable[[int], None] = lambda size: None) -> None:
        self.text = text
        self.digest = digest
        """The digest() of the value."""
        self._read = read

    @classmethod
    def checked(cls, text: str, field: str) -> "Unparsed":
        """Return a checked text. Raises InvalidArgument naming `field` for a text that is not a JSON object."""
        with large_value():
            value = _parsed(text, field, MAX_DEPTH, _decode_one_spelling)
            if not isinstance(value, dict):
                raise InvalidArgument(field, "is not a JSON object")
            made = cls(text, _digest_of(_encode_sorted(value)))
            del value  # before the garbage collector runs again
        return made

    def value(self) -> dict[str, Any]:
        """Parse the text and return a new object."""
        self._read(len(self.text) + _ITEM_BYTES * sum(self.text.count(mark) for mark in "[{,"))
        return parse_object(self.text, "")

    def for_reader(self, read: Callable[[int], None]) -> "Unparsed":
        """Return an Unparsed with the same text and another `read`."""
        return Unparsed(self.text, self.digest, read)


def parse_object(text: str, field: str, levels: int = MAX_DEPTH) -> dict[str, Any]:
    """Return the object of a JSON text; an empty object for an empty text. Raises InvalidArgument naming `field`."""
    if not text:
        return {}
    value = parse(text, field, levels)
    if not isinstance(value, dict):
        raise InvalidArgument(field, "is not a JSON object")
    return value


def is_short(number: int) -> bool:
    """Return whether every reader parses a whole number: it has at most MAX_DIGITS digits."""
    return -_TOO_LARGE < number < _TOO_LARGE


def is_finite(number: Any) -> bool:
    """Return whether a number can be sent as a float. A number that is too large for a float cannot."""
    try:
        return math.isfinite(number)
    except (OverflowError, ValueError):
        return False


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _whole(text: str) -> float:
    value = _finite(text)
    return int(value) if value.is_integer() else value


_decode = json.JSONDecoder(parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique).decode
_decode_one_spelling = json.JSONDecoder(parse_constant=_constant, parse_float=_whole, object_pairs_hook=_unique).decode
"""Reads a text as _one_spelling() writes its value."""
