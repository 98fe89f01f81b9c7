"""A mock model that calls every offered tool and then answers. `validate --run` tries agents with it.

It generates simple arguments from a tool's JSON Schema, always the same for the same schema. The author of a tool can
choose the values with `examples`, `default`, `enum` or `const`, or, for a text, with "for example ..." in the
description of the parameter. Keywords that are rare in tools, such as `not` and `contains`, are ignored.
"""

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from osmosis_grpc.policies.scripted import Reply, answer
from osmosis_grpc.protocol.types import ChatPurpose, ChatRequest, ChatResponse, Message
from osmosis_grpc.protocol.types.chat import call_prefix

_DEEPEST = 8
"""How many levels of objects and lists are generated. In the deeper half, objects get only required fields."""
_MOST_VALUES = 1000
_MOST_ITEMS = 100
_MOST_CHARS = 10_000
_TEXTS = {
    "date": "2025-01-31",
    "date-time": "2025-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "user@example.com",
    "expression": "2 + 3",
    "filename": "file.txt",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "path": "file.txt",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
"""The text for each format, and for a parameter with this name if the schema gives no other hint."""
_CANDIDATES = (*_TEXTS.values(), *(letter * count for count in range(1, 9) for letter in "aA1"))
"""The texts that are tried for a pattern."""
_EXAMPLE = re.compile(
    r"""\b(?:for example|e\.g\.|such as)[\s:,]+(?:(["'`])(.+?)\1|([^"'`,;()]+?)(?=[,;()]|\.?\s*$|\.\s| or | and ))""",
    re.IGNORECASE,
)
"""An example in a description, such as Oslo in "a city, for example Oslo"."""
_KEYWORDS = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that identify the type of a schema without `type`. The first match counts."""

_Schema = Mapping[str, Any]
_NOTHING = object()


def arguments_for(parameters: Any) -> dict[str, Any]:
    """Return arguments that fit a function's `parameters`, or {} if it has none. Never raises."""
    root = mapping(parameters)
    made = _Maker(root).value({"type": "object", **root}, 0, 0)
    return made if isinstance(made, dict) else {}


class _Maker:
    def __init__(self, root: _Schema) -> None:
        self._root = root
        self._left = _MOST_VALUES

    def value(self, schema: Any, level: int, index: int, name: str = "") -> Any:
        """Return a value that fits the schema, or _NOTHING. Values differ by `index` if possible."""
        self._left -= 1
        if schema is False or self._left < 0 or level > _DEEPEST:
            return _NOTHING
        schema = self._flat(schema, 0)
        if "const" in schema:
            return schema["const"]
        for choices in (schema.get("examples"), [schema.get("default")], schema.get("enum")):
            values = [item for item in choices if item is not None] if isinstance(choices, list) else []
            if values:
                return values[index % len(values)]
        kind = _kind(schema)
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
        parts += _list(schema, "allOf")
        for word in ("anyOf", "oneOf"):
            ways = _list(schema, word)
            parts += [way for way in ways if mapping(way).get("type") != "null"][:1] or ways[:1]
        for part in parts:
            inner = self._flat(part, depth + 1)
            properties = {**mapping(inner.get("properties")), **mapping(flat.get("properties"))}
            required = [*_list(inner, "required"), *_list(flat, "required")]
            flat = {**inner, **flat, "properties": properties, "required": required}
        return {key: item for key, item in flat.items() if item or key not in ("properties", "required")}

    def _at(self, reference: str) -> Any:
        """Return the target of a reference within the same schema, or {} for other references."""
        target: Any = self._root
        for part in reference.removeprefix("#").strip("/").split("/") if reference.strip("#/") else ():
            target = mapping(target).get(part.replace("~1", "/").replace("~0", "~"))
        return target if reference.startswith("#") else {}

    def _object(self, schema: _Schema, level: int) -> dict[str, Any]:
        made = {}
        required = [name for name in _list(schema, "required") if isinstance(name, str)]
        for name, inner in {**{key: {} for key in required}, **mapping(schema.get("properties"))}.items():
            if name in required or level < _DEEPEST // 2:
                made[name] = self.value(inner, level + 1, 0, name)
        return {name: value for name, value in made.items() if value is not _NOTHING}

    def _array(self, schema: _Schema, level: int) -> list[Any]:
        first = _list(schema, "prefixItems")
        least, most = _real(schema, "minItems", 0.0), _real(schema, "maxItems", math.inf)
        count = int(min(max(least, len(first) or 1), most, _MOST_ITEMS))
        kinds = [*first, *[schema.get("items", {})] * count][: max(0, count)]
        values = [self.value(kind, level + 1, index) for index, kind in enumerate(kinds)]
        return [value for value in values if value is not _NOTHING]


def _kind(schema: _Schema) -> str:
    """Return the type of a schema; if it has several, the first that is not null."""
    types = schema.get("type")
    kinds = [kind for kind in (types if isinstance(types, list) else [types]) if isinstance(kind, str)]
    if kinds:
        return next((kind for kind in kinds if kind != "null"), "null")
    return next((kind for kind, words in _KEYWORDS.items() if any(word in schema for word in words)), "string")


def _number(schema: _Schema, index: int, *, whole: bool) -> int | float:
    """Return a number between the bounds, if possible a small one."""
    step = _real(schema, "multipleOf", 1.0 if whole else 0.0)
    low, high = _real(schema, "minimum", -math.inf), _real(schema, "maximum", math.inf)
    above, below = _real(schema, "exclusiveMinimum", -math.inf), _real(schema, "exclusiveMaximum", math.inf)
    least, most = max(low, above), min(high, below)
    small = (step or 1.0) * (1 + index)
    bounds = [bound for bound in (least, most) if math.isfinite(bound)]
    middle = [sum(bounds) / len(bounds)] if bounds else []
    for near in (small, *bounds, *(bound + 1 for bound in bounds), *(bound - 1 for bound in bounds), *middle):
        for wanted in (math.ceil(near / step) * step, math.floor(near / step) * step) if step > 0 else (near,):
            if low <= wanted <= high and above < wanted < below:
                return int(wanted) if float(wanted).is_integer() and abs(wanted) < 2**53 else wanted
    return 1


def _text(schema: _Schema, index: int, name: str) -> str:
    least, most = _real(schema, "minLength", 0.0), _real(schema, "maxLength", _MOST_CHARS)
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        with suppress(re.error, RecursionError, OverflowError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern)
            fitting = (text for text in _CANDIDATES if least <= len(text) <= most and compiled.search(text))
            return next(fitting, "text")
    if isinstance(form, str) and form in _TEXTS:
        return _TEXTS[form]
    text = _TEXTS.get(name.lower(), "text") if index == 0 else f"text {index + 1}"
    example = _EXAMPLE.search(str(schema.get("description"))) if index == 0 else None
    if example is not None and least <= len(example[2] or example[3]) <= most:
        text = example[2] or example[3]
    return text.ljust(int(min(least, _MOST_CHARS)), ".")[: int(max(0, min(most, _MOST_CHARS)))]


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else {}."""
    return value if isinstance(value, Mapping) else {}


def _list(schema: _Schema, word: str) -> list[Any]:
    items = schema.get(word)
    return items if isinstance(items, list) else []


def _real(schema: _Schema, word: str, default: float) -> float:
    number = schema.get(word)
    is_number = isinstance(number, int | float) and not isinstance(number, bool) and -1e300 < number < 1e300
    return float(number) if is_number and number is not None else default


MOST_CHATS = 8
"""After this many chats of a sample, the mock answers even if the history does not show its calls."""


class EveryToolMock:
    """Calls the first offered tool alone, then all other tools at once, and then replies with `answer`.

    Each tool is called once, even if a later chat is the first to offer it. If `tool_choice` names a tool, the mock
    calls only that one, and with "none" it calls no tool.

    Args:
        answer: The last reply.
        tokens: How many tokens each reply has; 8 to 32 by default.
    """

    def __init__(self, answer: str = "I called every tool.", *, tokens: int | None = None) -> None:
        self._answer = answer
        self._tokens = tokens

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        return answer(request, self._reply(request), tokens=self._tokens, version="mock-1")

    def _reply(self, request: ChatRequest) -> Reply:
        offered = dict(_functions(request.tools or ()))
        chosen = request.params.get("tool_choice")
        if isinstance(chosen, Mapping):
            name = mapping(chosen.get("function")).get("name")
            offered = {name: offered[name]} if name in offered else {}
        over = request.chat_number > MOST_CHATS or request.purpose is ChatPurpose.JUDGE or chosen == "none"
        called = set(called_names(request.messages))
        new = [] if over else [name for name in offered if name not in called]
        if not new:
            return self._answer
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"{call_prefix(request)}_{index}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments_for(offered[name]), ensure_ascii=False),
                    },
                }
                for index, name in enumerate(new if called else new[:1])
            ],
        }


def called_names(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the names of the tools that the assistant's messages call."""
    for message in messages:
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        for call in calls if isinstance(calls, list) else ():
            name = mapping(mapping(call).get("function")).get("name")
            if isinstance(name, str):
                yield name


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for tool in tools:
        function = mapping(mapping(tool).get("function"))
        if isinstance(function.get("name"), str):
            yield function["name"], function.get("parameters")
