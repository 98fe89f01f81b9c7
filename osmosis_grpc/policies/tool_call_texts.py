"""Finds the tool calls in the text of a reply. STYLES has the ways in which models write them.

- hermes: <tool_call>{"name": NAME, "arguments": {...}}</tool_call> (Hermes, Qwen 2.5 and 3)
- qwen: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> (Qwen3-Coder)
- llama: <|python_tag|>{"name": NAME, "parameters": {...}}, or the same without the tag, several separated by ";", or
  <function=NAME>{...}</function> (Llama 3)
- json: {"name": NAME, "arguments": {...}} or a list of such objects at the beginning of the text

A call that cannot be read stays text.
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
    """A reply's text, taken apart."""

    content: str
    """The text without the calls, and without white space at its ends."""
    calls: tuple[FoundCall, ...] = ()


Tool = Mapping[str, Any]

ToolParser = Callable[[str, Sequence[Tool]], ParsedText]

_Found = tuple[int, int, FoundCall]
"""The beginning and the end of a call in its text, and the call."""

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>")
_LLAMA_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*(?=\{)")
_PYTHON_TAG = "<|python_tag|>"
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"
"""Stripped from both ends of a reply's content. Other Unicode white space, such as a no-break space, is content."""


def parse_tool_calls(text: str, tools: Sequence[Tool], style: str = "auto") -> ParsedText:
    """Return a reply's content and its calls. `style` is a key of STYLES; with "auto" the first that finds a call."""
    for find in STYLES.values() if style == "auto" else (STYLES[style],):
        found = list(find(text, tools))
        if found:
            return ParsedText(_without(text, found), tuple(call for _, _, call in found))
    return ParsedText(text.strip(_BLANKS))


def _hermes(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    for block in _BLOCK.finditer(text):
        call = _call(_json(block[1]), ("arguments", "parameters"))
        if call is not None:
            yield *block.span(), call


def _qwen(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    for block in _BLOCK.finditer(text):
        function = _FUNCTION.fullmatch(block[1])
        if function is None:
            continue
        found = _parameters(function[2])
        types = _types(tools, function[1])
        if found is not None:
            arguments = {key: _value(value, types.get(key)) for key, value in found}
            yield *block.span(), FoundCall(function[1], arguments)


def _parameters(text: str) -> list[tuple[str, str]] | None:
    """Return the names and the texts of parameters; None if the text has anything else."""
    found, at = [], 0
    while begin := _PARAMETER.match(text, at):
        end = text.find("</parameter>", begin.end())
        if end < 0:
            return None
        found.append((begin[1], text[begin.end() : end]))
        at = end + len("</parameter>")
    return None if text[at:].strip() else found


def _llama(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    at = 0
    while (function := _LLAMA_FUNCTION.search(text, at)) and (end := text.find("</function>", function.end())) >= 0:
        at = end + len("</function>")
        arguments = _json(text[function.end() : end])
        if isinstance(arguments, dict):
            yield function.start(), at, FoundCall(function[1], arguments)
    before, tag, _ = text.partition(_PYTHON_TAG)
    begin = len(before) if tag else 0
    at = begin + len(tag)
    while (read := _json_at(text, at)) is not None:
        value, end = read
        call = _call(value, ("parameters",))
        if call is None:
            return
        yield begin, end, call
        separator = re.compile(r"\s*;").match(text, end)
        if separator is None:
            return
        begin = end
        at = separator.end()


def _plain_json(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    fence = _FENCE.match(text)
    read = _json_at(text, fence.start(1) if fence else 0)
    if read is None:
        return
    value, end = read
    calls = [_call(item, ("arguments", "parameters")) for item in (value if isinstance(value, list) else [value])]
    begin, end = (0, len(text)) if fence and end == fence.end(1) else (0, end)
    if None not in calls and not (fence and end != len(text)):
        for call in calls:
            if call is not None:
                yield begin, end, call


STYLES: Mapping[str, Callable[[str, Sequence[Tool]], Iterator[_Found]]] = {
    "hermes": _hermes,
    "qwen": _qwen,
    "llama": _llama,
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
    kept, at = [], 0
    for begin, end, _ in found:
        kept.append(text[at:begin] if begin > at else "")
        at = max(at, end)
    return "".join([*kept, text[at:]]).strip(_BLANKS)


def _call(value: Any, keys: Sequence[str]) -> FoundCall | None:
    """Return a call of an object {"name": ..., KEY: {...}}; None for any other value."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    key = next((key for key in keys if key in value), None)
    arguments = value.get(key) if key else None
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        arguments = _json(arguments)
    return FoundCall(value["name"], arguments) if isinstance(arguments, dict) else None


def _json(text: str) -> Any:
    """Return the value of a text of JSON; None if it is not one."""
    read = _json_at(text, 0)
    return read[0] if read is not None and not text[read[1] :].strip() else None


def _json_at(text: str, at: int) -> tuple[Any, int] | None:
    """Return the JSON value at a position, and its end; None if there is none."""
    begin = re.compile(r"\s*").match(text, at)
    try:
        value, end = _DECODER.raw_decode(text, begin.end() if begin else at)
        return jsontext.copy(value, "call"), end
    except (ValueError, RecursionError, InvalidArgument):
        return None


def _types(tools: Sequence[Tool], name: str) -> dict[str, Any]:
    """Return the types of a tool's parameters by their names."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                return {key: part.get("type") for key, part in properties.items() if isinstance(part, Mapping)}
    return {}


def _value(text: str, kind: Any) -> Any:
    """Return the value of a parameter: JSON, unless its type is a string or it is no JSON."""
    text = text.removeprefix("\n").removesuffix("\n")
    if kind == "string":
        return text
    value = _json(text)
    return text if value is None and text.strip() != "null" else value
