"""Finds misspelt keys in a tool's schema. A misspelt key is an unknown key that looks like a known key.

Other unknown keys are not reported, because they can be extensions of vendors.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

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
