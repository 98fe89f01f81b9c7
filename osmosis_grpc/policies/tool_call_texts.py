"""Finds the tool calls in the text of a reply, for models without a renderer. STYLES has the supported formats.

- hermes: <tool_call>{"name": NAME, "arguments": {...}}</tool_call> (Hermes, Qwen 2.5 and 3)
- qwen: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> (Qwen3-Coder)
- json: {"name": NAME, "arguments": {...}} or a list of such objects at the beginning of the text

A call that is malformed or has no end stays text. A call without tags counts only if the chat offers the tool that it
names.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext


@dataclass(frozen=True, slots=True)
class FoundCall:
    """One tool call of a text."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The content and the tool calls of a reply's text."""

    content: str
    """The text without the calls, and without white space at its ends."""
    calls: tuple[FoundCall, ...] = ()
    unread: tuple[str, ...] = ()
    """What is wrong with each malformed call: `unclosed_block` or `invalid_call`."""


Tool = Mapping[str, Any]

ToolParser = Callable[[str, Sequence[Tool]], ParsedText]

_Found = tuple[int, int, FoundCall | str]
"""The beginning and the end of a call in the text, and the call or what is wrong with it."""

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^>\s]+)>")
_FUNCTION_END = re.compile(r"</function>(?:\s*</tool_call>)?")
_PARAMETER = re.compile(r"(?:^|\n|(?<=</parameter>))[ \t]*<parameter=([^>\s]+)>")
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"
"""The characters that are stripped from the ends of a content. Others, such as a no-break space, are kept."""


def parse_tool_calls(text: str, tools: Sequence[Tool], style: str = "auto") -> ParsedText:
    """Split a reply into its content and its calls.

    Args:
        text: The text of the reply, without its reasoning.
        tools: The tools that are offered.
        style: A key of STYLES, or "auto" for the first style that finds a call.
    """
    unread: list[_Found] = []
    for find in STYLES.values() if style == "auto" else (STYLES[style],):
        found = list(find(text, tools))
        calls = [call for _, _, call in found if isinstance(call, FoundCall)]
        problems = tuple(call for _, _, call in found if isinstance(call, str))
        if calls:
            return ParsedText(_without(text, found), tuple(calls), problems)
        unread = unread or found
    return ParsedText(text.strip(_BLANKS), unread=tuple(call for _, _, call in unread if isinstance(call, str)))


def _hermes(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    at = 0
    while (begin := text.find(OPEN, at)) >= 0:
        at = begin + len(OPEN)
        if _FUNCTION.match(text, begin):  # a call of another style
            continue
        found, end = [], at
        while (read := _json_at(text, end)) is not None:
            value, end = read
            found.append(_call(value, ("arguments", "parameters")) or "invalid_call")
        closed = text.startswith(CLOSE, _SPACE.match(text, end).end())  # type: ignore[union-attr]
        following = text.find(CLOSE, end)
        if closed and found:
            at = following + len(CLOSE)
            yield from ((begin, at, call) for call in found)
        elif following < 0:
            yield begin, len(text), "unclosed_block"
            return
        else:
            yield begin, following + len(CLOSE), "invalid_call"


def _qwen(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    at, offered = 0, _names(tools)
    while function := _FUNCTION.search(text, at):
        at = function.end()
        if not text.startswith(OPEN, function.start()) and function[1] not in offered:
            continue
        ended = _FUNCTION_END.search(text, at)
        if ended is None:
            yield function.start(), len(text), "unclosed_block"
            return
        found = _parameters(text[at : ended.start()])
        at = ended.end()
        if found is None:
            yield function.start(), at, "invalid_call"
            continue
        schemas = next((properties_of(tool) for tool in tools if name_of(tool) == function[1]), {})
        arguments = {key: _value(value, schemas.get(key)) for key, value in found}
        yield function.start(), at, FoundCall(function[1], arguments)


def _parameters(text: str) -> list[tuple[str, str]] | None:
    """Return the names and the texts of parameters, or None if other text precedes them.

    A parameter may lack its end tag: the beginning of the next one ends it, too.
    """
    begins = list(_PARAMETER.finditer(text))
    if text[: begins[0].start() if begins else len(text)].strip():
        return None
    found = []
    for begin, following in zip(begins, [*begins[1:], None], strict=False):
        value = text[begin.end() : following.start() if following else len(text)]
        inside, end, after = value.rpartition("</parameter>")
        if end and after.strip():
            return None
        found.append((begin[1], inside if end else value))
    return found


def _plain_json(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    fence = _FENCE.match(text)
    read = _json_at(text, fence.start(1) if fence else 0)
    if read is None:
        return
    value, end = read
    calls = [_call(item, ("arguments", "parameters")) for item in (value if isinstance(value, list) else [value])]
    if fence:
        if end != fence.end(1):
            return
        end = len(text)
    elif (closing := _SPACE.match(text, end).end()) and text.startswith(CLOSE, closing):  # type: ignore[union-attr]
        end = closing + len(CLOSE)  # the call has no opening tag
    offered = _names(tools)
    if all(call is not None and call.name in offered for call in calls):
        for call in calls:
            if call is not None:
                yield 0, end, call


STYLES: Mapping[str, Callable[[str, Sequence[Tool]], Iterator[_Found]]] = {
    "hermes": _hermes,
    "qwen": _qwen,
    "json": _plain_json,
}
"""The styles, in the order in which "auto" tries them."""


def parser_of(style: "str | ToolParser") -> ToolParser:
    """Return the parser of a style, or `style` if it is a parser. Raises ValueError for an unknown style."""
    if callable(style):
        return style
    if style != "auto" and style not in STYLES:
        raise ValueError(f"tool_parser: {style!r} is not one of auto, {', '.join(STYLES)}")
    return lambda text, tools: parse_tool_calls(text, tools, style)


def _without(text: str, found: Sequence[_Found]) -> str:
    """Return a text without its calls, but with the malformed ones."""
    kept, at = [], 0
    for begin, end, call in found:
        if isinstance(call, FoundCall):
            kept.append(text[at:begin] if begin > at else "")
            at = max(at, end)
    return "".join([*kept, text[at:]]).strip(_BLANKS)


def _call(value: Any, keys: Sequence[str]) -> FoundCall | None:
    """Return the call of an object {"name": ..., KEY: {...}}, or None for any other value."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    key = next((key for key in keys if key in value), None)
    arguments = value.get(key) if key else None
    if isinstance(arguments, str):  # some models write the arguments as a JSON string
        arguments = json_of(arguments)
    return FoundCall(value["name"], arguments) if isinstance(arguments, dict) else None


def json_of(text: str) -> Any:
    """Return the value of a JSON text, or None if it is malformed.

    Args:
        text: The text.
    """
    read = _json_at(text, 0)
    return read[0] if read is not None and not text[read[1] :].strip() else None


def _json_at(text: str, at: int) -> tuple[Any, int] | None:
    """Return the JSON value at a position and its end, or None if there is none."""
    begin = _SPACE.match(text, at)
    try:
        value, end = _DECODER.raw_decode(text, begin.end() if begin else at)
        return jsontext.copy(value, "call"), end
    except (ValueError, RecursionError, InvalidArgument):
        return None


def name_of(tool: Tool) -> str:
    """Return the name of a tool, or an empty string.

    Args:
        tool: The tool, in OpenAI's format.
    """
    function = tool.get("function")
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""


def properties_of(tool: Tool) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters, by name.

    Args:
        tool: The tool, in OpenAI's format.
    """
    found: Any = tool
    for key in ("function", "parameters", "properties"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _names(tools: Sequence[Tool]) -> set[str]:
    return {name for tool in tools if (name := name_of(tool))}


def _value(text: str, schema: Any) -> Any:
    """Parse a parameter as JSON, or keep it as text if it is not JSON or its schema allows a text."""
    text = text.removeprefix("\n").removesuffix("\n")
    is_null = text.strip() == "null"
    if allows(schema, "string") and not (is_null and allows(schema, "null")):
        return text
    value = json_of(text)
    return text if value is None and not is_null else value


def allows(schema: Any, kind: str) -> bool:
    """Return whether a schema allows values of a type.

    Args:
        schema: The schema of a parameter.
        kind: A type of JSON schema, such as "string".
    """
    if not isinstance(schema, Mapping):
        return False
    types = schema.get("type")
    if types == kind or (isinstance(types, list) and kind in types):
        return True
    branches = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    texts = kind == "string" and any(isinstance(each, str) for each in schema.get("enum") or ())
    return texts or any(allows(branch, kind) for branch in branches)
