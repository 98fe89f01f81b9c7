"""Finds misspelt keys in a tool's schema, and return types that cannot be converted to JSON, before the tool runs.

A misspelt key is an unknown key that looks like a known one. Other unknown keys are not reported, because they can be
extensions of vendors.
"""

import difflib
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter

from osmosis_grpc.protocol.types.json_values import ARRAYS

_TOOL = frozenset({"type", "function", "strict"})
_FUNCTION = frozenset({"name", "description", "parameters", "strict"})
_SCHEMA = frozenset(
    """
    $anchor $comment $defs $id $ref $schema additionalProperties allOf anyOf const contains contentEncoding
    contentMediaType default definitions dependentRequired dependentSchemas deprecated description else enum example
    examples exclusiveMaximum exclusiveMinimum format id if items maxContains maxItems maxLength maxProperties maximum
    minContains minItems minLength minProperties minimum multipleOf not nullable oneOf pattern patternProperties
    prefixItems properties propertyNames readOnly required strict then title type unevaluatedItems
    unevaluatedProperties uniqueItems writeOnly
    """.split()  # noqa: SIM905
)
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value is a mapping of names to schemas."""
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_ALIKE = 0.75
_DEEPEST = 32


def misspelt_keys(tool: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each misspelt key of a tool, and the known key that it looks like."""
    yield from _unknown(tool, _TOOL, "")
    function = tool.get("function")
    if isinstance(function, Mapping):
        yield from _unknown(function, _FUNCTION, "function.")
        yield from _schema(function.get("parameters"), "function.parameters.", _DEEPEST)


def _schema(schema: Any, path: str, levels: int) -> Iterator[tuple[str, str]]:
    if not isinstance(schema, Mapping) or not levels:
        return
    yield from _unknown(schema, _SCHEMA, path)
    for word in _NAMED:
        for name, inner in schema[word].items() if isinstance(schema.get(word), Mapping) else ():
            yield from _schema(inner, f"{path}{word}.{name}.", levels - 1)
    for word in _LISTED:
        for index, inner in enumerate(schema[word]) if isinstance(schema.get(word), list | tuple) else ():
            yield from _schema(inner, f"{path}{word}[{index}].", levels - 1)
    for word in _SINGLE:
        yield from _schema(schema.get(word), f"{path}{word}.", levels - 1)


def _unknown(found: Mapping[Any, Any], known: frozenset[str], path: str) -> Iterator[tuple[str, str]]:
    for key in found:
        near = difflib.get_close_matches(key, known, 1, _ALIKE) if isinstance(key, str) and key not in known else ()
        if near:
            yield f"{path}{key}", near[0]


def result_problem(function: Any) -> str:
    """Return what is wrong with the return annotation of a tool's function, or an empty string.

    Any, an abstract class, and a missing annotation permit every value, so they are accepted.
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
