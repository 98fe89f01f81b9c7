"""Reads replies with the labels Thought, Action and Final Answer."""

import json
import re
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.compat.agentic.argument_text import NAME, CallText, CallTextError, read_call
from osmosis_grpc.compat.agentic.reading import Answer, Call, Part, Thought, Unreadable

_LABEL = re.compile(
    r"^[ \t>*#-]*(thought|action input|action|observation|final answer)[ \t*]*:[ \t]*\**", re.IGNORECASE | re.MULTILINE
)
_FENCE = re.compile(r"\s*```[\w-]*[ \t]*\n?")
MOST_UNREADABLE = 8
"""At most this many actions of a reply are reported as not readable."""
_NAMES, _ARGUMENTS = (
    ("name", "tool", "action", "tool_name"),
    ("arguments", "parameters", "args", "input", "action_input"),
)


def read_reply(text: str, parameters: Mapping[str, list[str]] | None = None) -> list[Part]:
    """Return the parts of a reply in their order.

    `parameters` has the parameters of each tool, for values without names.

    A label stands at the beginning of a line, in any case. Text before the first label is a thought. What follows
    "Observation:" is left out, because the model made it up. A final answer goes on to the end of the reply. An action
    is NAME(KEY=VALUE, ...), an object such as {"name": ..., "arguments": {...}}, or NAME with an "Action Input:" below.
    After MOST_UNREADABLE actions that cannot be read, the rest is left out.
    """
    known, parts, at = parameters or {}, [], 0
    label = ""
    while True:
        found = _LABEL.search(text, at)
        if label in ("", "thought"):
            parts += _thought(text[at : found.start() if found else len(text)])
        if found is None:
            return parts
        label, at = " ".join(found[1].lower().split()), found.end()
        if label == "observation":
            return parts
        if label == "action":
            if sum(isinstance(part, Unreadable) for part in parts) >= MOST_UNREADABLE:
                return parts
            if answer := re.compile(r"\s*final answer\s*:", re.IGNORECASE).match(text, at):
                label, at = "final answer", answer.end()
            else:
                part, at = _action(text, at, known)
                parts.append(part)
        if label == "final answer":
            return [*parts, Answer(_without_fence(text[at:]))]


def _thought(text: str) -> list[Part]:
    bare = re.sub(r"^```[\w-]*[ \t]*$", "", text.strip(), flags=re.MULTILINE).strip() if "```" in text else text.strip()
    return [Thought(text.strip())] if bare else []


def _without_fence(text: str) -> str:
    """Return an answer without a closing fence that belongs to an opening one before the label."""
    stripped = text.strip()
    if stripped.endswith("```") and stripped.count("```") % 2:
        return stripped[:-3].rstrip()
    return stripped


def _action(text: str, at: int, parameters: Mapping[str, list[str]]) -> tuple[Part, int]:
    fence = _FENCE.match(text, at)
    begin = fence.end() if fence else at + len(text[at:]) - len(text[at:].lstrip())
    try:
        if text[begin : begin + 1] == "{":
            call, end = _object(text, begin)
        else:
            call, end = _call_or_input(text, begin)
    except CallTextError as error:
        following = _LABEL.search(text, begin)
        end = following.start() if following else len(text)
        return Unreadable(text[begin:end].strip(), str(error)), end
    return Call(text[begin:end].strip(), call.name, call.named(parameters.get(call.name, []))), end


def _call_or_input(text: str, begin: int) -> tuple[CallText, int]:
    """Read NAME(...), or NAME with an "Action Input:" on the next line, or NAME alone."""
    name = NAME.match(text, begin)
    line_end = text.find("\n", begin) if "\n" in text[begin:] else len(text)
    if name is None or text[name.end() : line_end].strip("`* \t\r"):
        return read_call(text, begin)
    following = _LABEL.search(text, line_end)
    if following is None or following[1].lower() != "action input" or text[line_end : following.start()].strip("`* \n"):
        return CallText(name[0]), line_end
    after = _LABEL.search(text, following.end())
    end = after.start() if after else len(text)
    given = re.sub(r"^```[\w-]*\n|\n?```$", "", text[following.end() : end].strip()).strip()
    try:
        value: Any = json.loads(given, strict=False)
    except ValueError:
        value = given
    return (CallText(name[0], value) if isinstance(value, dict) else CallText(name[0], positional=(value,))), end


def _object(text: str, begin: int) -> tuple[CallText, int]:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        raise CallTextError(f"the object is not JSON: {error}") from None
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if name is None or not isinstance(arguments, dict):
        raise CallTextError('the object is not {"name": TOOL, "arguments": {...}}')
    return CallText(name, arguments), end
