"""Makes plain arguments for a tool from its JSON Schema. Equal schemas give equal arguments.

The author of a tool can choose its arguments with `examples`, with a `default`, or for a text with the words
"for example" in its description. Ignored keywords: `pattern`, `not`, `if`, `patternProperties`, `dependentSchemas`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

_DEEPEST = 8
"""The most levels of nested objects and lists. Objects in the deeper half have no optional fields."""
_MOST_VALUES = 1000
_MOST_ITEMS = 100
_MOST_CHARS = 10_000

_FORMATS = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "path": "file.txt",
}
_BY_NAME = {"expression": "2 + 3", "filename": "file.txt"} | {
    name: _FORMATS[name] for name in ("date", "time", "email", "hostname", "uri", "url", "uuid", "path")
}
"""The texts of parameters with these names, if their schemas say no more."""
_EXAMPLE = re.compile(
    r"""\b(?:for\ example|e\.g\.|such\ as)[\s:,]+
    (?: "([^"]+)" | '([^']+)' | `([^`]+)`
      | ([^\s,;()"'`][^,;()"'`]*?) (?= [,;()] | \.?\s*$ | \.\s | \sor\s | \sand\s )
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_LONGEST_EXAMPLE = 200  # characters
_KINDS = (
    ("object", ("properties", "required", "additionalProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "contains")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
"""Types with keywords. A schema without `type` has the first type of which it has a keyword."""

_Schema = Mapping[str, Any]
_NOTHING = object()


def arguments_for(parameters: Any) -> dict[str, Any]:
    """Return arguments that fit a function's `parameters`; {} without parameters. Never raises."""
    root = mapping(parameters)
    made = _Maker(root).value({"type": "object", **root}, 0, 0)
    return made if isinstance(made, dict) else {}


class _Maker:
    def __init__(self, root: _Schema) -> None:
        self._root = root
        self._left = _MOST_VALUES

    def value(self, schema: Any, level: int, index: int, name: str = "") -> Any:
        """Return a value that fits; _NOTHING if none is found. If possible, each index gives another value.

        `name` is the name of the parameter.
        """
        self._left -= 1
        if schema is False or self._left < 0:
            return _NOTHING
        schema = self._flat(schema, 0)
        if "const" in schema:
            return schema["const"]
        for word in ("examples", "example", "default", "enum"):
            given = [item for item in _list(schema, word) if item is not None]  # null says little about a tool
            if given:
                return given[index % len(given)]
        types = schema.get("type")
        kinds = [kind for kind in (types if isinstance(types, list) else [types]) if isinstance(kind, str)]
        kind = next((kind for kind in kinds if kind != "null"), "null" if kinds else None)
        if kind is None:
            kind = next((kind for kind, words in _KINDS if any(word in schema for word in words)), "string")
        if level > _DEEPEST:
            return _NOTHING
        if kind == "object":
            return self._object(schema, level)
        if kind == "array":
            return self._array(schema, level)
        if kind in ("integer", "number"):
            return _number(schema, index, whole=kind == "integer")
        if kind in ("boolean", "null"):
            return index % 2 == 0 if kind == "boolean" else None
        return _text(schema, index, name)

    def _flat(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return a schema with its references resolved and its first alternative merged."""
        if not isinstance(schema, Mapping) or depth > 16:
            return {}
        flat = {key: item for key, item in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
        parts = [self._at(schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
        parts += _list(schema, "allOf") if isinstance(schema.get("allOf"), list) else []
        for word in ("anyOf", "oneOf"):
            ways = schema.get(word) if isinstance(schema.get(word), list) else []
            parts += [next((way for way in ways if mapping(way).get("type") != "null"), ways[0])] if ways else []
        for part in parts:
            inner = self._flat(part, depth + 1)
            properties = {**mapping(inner.get("properties")), **mapping(flat.get("properties"))}
            required = [*_names(inner), *_names(flat)]
            flat = {**inner, **flat} | ({"properties": properties} if properties else {})
            flat |= {"required": required} if required else {}
        return flat

    def _at(self, reference: str) -> Any:
        """Return the target of a reference within the same schema; {} for any other."""
        found: Any = self._root
        path = reference.removeprefix("#").strip("/")
        for part in path.split("/") if reference.startswith("#") and path else ():
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found if reference.startswith("#") else {}

    def _object(self, schema: _Schema, level: int) -> Any:
        made = {}
        required = _names(schema)
        for name, inner in {**{key: {} for key in required}, **mapping(schema.get("properties"))}.items():
            if name not in required and level >= _DEEPEST // 2:
                continue
            value = self.value(inner, level + 1, 0, name)
            if value is not _NOTHING:
                made[name] = value
        more = schema.get("additionalProperties", {})
        for index in range(min(_MOST_ITEMS, _whole(schema, "minProperties", 0) - len(made))):
            value = self.value(more, level + 1, index)
            if value is not _NOTHING:
                made[f"key{index + 1}"] = value
        return made

    def _array(self, schema: _Schema, level: int) -> Any:
        first, items = _list(schema, "prefixItems"), schema.get("items", {})
        if isinstance(items, list):  # in older drafts of JSON Schema
            first, items = items, schema.get("additionalItems", {})
        least, most = _whole(schema, "minItems", 0), _whole(schema, "maxItems", _MOST_ITEMS)
        contains = [schema["contains"]] if "contains" in schema else []
        count = min(max(least, len(first) or len(contains) or 1), most, _MOST_ITEMS)
        kinds = [*first, *contains, *[items] * count][:count]
        values = [self.value(kind, level + 1, index) for index, kind in enumerate(kinds)]
        return [value for value in values if value is not _NOTHING]


def _number(schema: _Schema, index: int, *, whole: bool) -> int | float:
    step = _real(schema, "multipleOf") or (1.0 if whole else 0.0)
    low, high = _real(schema, "minimum"), _real(schema, "maximum")
    above, below = _real(schema, "exclusiveMinimum"), _real(schema, "exclusiveMaximum")
    if schema.get("exclusiveMinimum") is True:  # in older drafts of JSON Schema
        low, above = None, low
    if schema.get("exclusiveMaximum") is True:
        high, below = None, high
    least = max((bound for bound in (low, above) if bound is not None), default=-math.inf)
    most = min((bound for bound in (high, below) if bound is not None), default=math.inf)
    if step > 0:  # count in steps
        first, last = least / step, most / step
        if least > -math.inf:
            first = math.floor(first) + 1.0 if least == above else math.ceil(first)
        if most < math.inf:
            last = math.ceil(last) - 1.0 if most == below else math.floor(last)
        wanted = step * min(max(1.0 + index, first), last)
    else:
        wanted = min(max(1.0 + index, least), most)
        if wanted in (above, below):
            wanted = (least + most) / 2 if most - least < 2 else wanted + (1 if wanted == above else -1)
    return int(wanted) if wanted.is_integer() and abs(wanted) < 2**53 else wanted


def _text(schema: _Schema, index: int, name: str) -> str:
    least, most = _whole(schema, "minLength", 0), _whole(schema, "maxLength", _MOST_CHARS)
    form = schema.get("format")
    if isinstance(form, str) and form in _FORMATS:
        return _FORMATS[form]
    for given in (_example(schema.get("description")), _BY_NAME.get(name.lower())) if index == 0 else ():
        if given and "pattern" not in schema and least <= len(given) <= most:
            return given
    text = "text" if index == 0 else f"text {index + 1}"
    return (text + "." * (min(least, _MOST_CHARS) - len(text)))[: max(0, most)]


def _example(description: Any) -> str:
    """Return the example in a description, such as Oslo in "a city, for example Oslo"; empty if it has none."""
    found = _EXAMPLE.search(description) if isinstance(description, str) else None
    text = next(filter(None, found.groups()), "").strip() if found else ""
    return text if len(text) <= _LONGEST_EXAMPLE else ""


def _list(schema: _Schema, word: str) -> list[Any]:
    """Return the items of a keyword, or its single value as a list."""
    found = schema.get(word, _NOTHING)
    if word in ("default", "example"):
        return [] if found is _NOTHING else [found]
    return found if isinstance(found, list) else []


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, otherwise {}."""
    return value if isinstance(value, Mapping) else {}


def _names(schema: _Schema) -> list[str]:
    return [name for name in _list(schema, "required") if isinstance(name, str)]


def _real(schema: _Schema, word: str) -> float | None:
    found = schema.get(word)
    real = isinstance(found, int | float) and not isinstance(found, bool) and -1e300 < found < 1e300
    return float(found) if real and found is not None else None


def _whole(schema: _Schema, word: str, default: int) -> int:
    found = _real(schema, word)
    return default if found is None or found < 0 else int(min(found, 10**9))
