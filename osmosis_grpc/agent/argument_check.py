"""Checks the arguments of a tool call against a JSON schema."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types.outcome import clip

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
SHOWN = 80
"""The most characters of a wrong value in an error."""


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return the arguments. Raises ToolArgumentError, which names each wrong argument.

    The check knows type, enum, const, anyOf, properties, required, additionalProperties, items, and the limits of
    numbers, texts and lists. At the top, further arguments are wrong unless additionalProperties permits them.
    """
    given = dict(arguments)
    problems = list(_problems({"additionalProperties": False, **schema}, given, ""))
    if problems:
        raise ToolArgumentError("; ".join(problems), "", tool)
    return given


def _problems(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    where = path or "the arguments"
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if names and not any(_TYPES.get(name, lambda _: True)(value) for name in names):
        yield f"{where}: {_shown(value)} is not of the type {' or '.join(names)}"
        return
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        yield f"{where}: {_shown(value)} is not one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where}: {_shown(value)} is not {schema['const']!r}"
    if "anyOf" in schema:
        tried = [list(_problems(each, value, path)) for each in schema["anyOf"]]
        if all(tried):
            yield min(tried, key=len)[0]
    for limit, (fits, text) in _LIMITS.items():
        if limit in schema and not fits(value, schema[limit]):
            yield f"{where}: {_shown(value)} {text} {schema[limit]}"
    if isinstance(value, dict):
        yield from _object_problems(schema, value, path)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for index, item in enumerate(value):
            yield from _problems(schema["items"], item, f"{path}.{index}" if path else str(index))


def _object_problems(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_below(path, name)}: is missing"
    for name, item in value.items():
        if name in properties:
            yield from _problems(properties[name], item, _below(path, name))
        elif isinstance(more, Mapping):
            yield from _problems(more, item, _below(path, name))
        elif not more:
            yield f"{_below(path, name)}: is not a parameter; known: {', '.join(properties) or 'none'}"


_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, limit: not _TYPES["number"](value) or value >= limit, "is less than"),
    "maximum": (lambda value, limit: not _TYPES["number"](value) or value <= limit, "is greater than"),
    "minLength": (lambda value, limit: not isinstance(value, str) or len(value) >= limit, "has fewer characters than"),
    "maxLength": (lambda value, limit: not isinstance(value, str) or len(value) <= limit, "has more characters than"),
    "minItems": (lambda value, limit: not isinstance(value, list) or len(value) >= limit, "has fewer items than"),
    "maxItems": (lambda value, limit: not isinstance(value, list) or len(value) <= limit, "has more items than"),
}


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    return clip(repr(value), SHOWN)
