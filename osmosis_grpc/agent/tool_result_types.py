"""Finds tools whose return types cannot be converted to JSON, before the tools run."""

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter

from osmosis_grpc.protocol.types.json_values import ARRAYS


def result_problem(function: Any) -> str:
    """Return what is wrong with the return annotation of a tool's function, or an empty string.

    Any, an abstract class, and a function without an annotation may return anything, so they are no problem.
    """
    try:
        hint = get_type_hints(function).get("return")
    except Exception:  # not a function, or a name that only a type checker imports
        return ""
    found = dict.fromkeys(kind.__name__ for kind in _kinds(hint) if not _has_json(kind))
    return f"returns {', '.join(found)}, which is not JSON: the model reads its str(), or an error" if found else ""


def _kinds(hint: Any) -> Iterator[type]:
    origin = get_origin(hint)
    kind = hint if origin is None else origin
    if isinstance(kind, type) and (origin is None or issubclass(kind, Iterator | AsyncIterator)):
        yield kind
    for each in get_args(hint):
        yield from _kinds(each)


def _has_json(kind: type) -> bool:
    if kind.__module__.partition(".")[0] in ARRAYS or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, Iterator | AsyncIterator):
        return False
    if inspect.isabstract(kind):
        return True
    try:
        TypeAdapter(kind)
    except PydanticUserError:
        return False
    return True
