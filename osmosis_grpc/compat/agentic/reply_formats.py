"""The two formats in which a model calls tools: as text with labels, and as the tool calls of the model's API.

A reply is read into its parts: thoughts, calls of tools, an answer, and calls that cannot be read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_grpc.agent.tool_calls import get_tool_call_info
from osmosis_grpc.compat.agentic.argument_text import NAME, CallText, CallTextError, read_call
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import Message

_LABEL = re.compile(
    r"^[ \t>*#-]*(thought|action input|action|observation|final answer)[ \t*]*:[ \t]*\**", re.IGNORECASE | re.MULTILINE
)
_FENCE = re.compile(r"\s*```[\w-]*[ \t]*\n?")
MOST_UNREADABLE = 8
"""At most this many unreadable actions of a reply are reported."""
_NAMES, _ARGUMENTS = (
    ("name", "tool", "action", "tool_name"),
    ("arguments", "parameters", "args", "input", "action_input"),
)
OBSERVATION = "Observation: "
"""A message with the results of tools begins with this text."""
REACT_PROMPT = """\
Answer the question. Work in steps. In each step, write a thought and then an action:
Thought: what you know, and what you need next
Action: TOOL(PARAMETER=VALUE, ...)
Texts are in quotes. You then get the result of the action, which begins with "Observation:". When you know the answer,
write this instead of an action:
Final Answer: the answer
{tools}"""
NO_TOOLS = "There are no tools: answer without an action."


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that is neither an action nor an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a tool."""

    text: str
    """The call as it is written in the reply."""
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """The id that the model gave; empty for a call in a text."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An action that cannot be read as a tool call."""

    text: str
    error: str
    """What is wrong with the action."""
    call_id: str = ""
    name: str = ""
    """The name of the tool, if it can be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer."""

    text: str


Part = Thought | Call | Unreadable | Answer


def read_reply(text: str, parameters: Mapping[str, list[str]] | None = None) -> list[Part]:
    """Return the parts of a reply in their order.

    `parameters` lists the parameters of each tool. They name the positional values of a call.

    A label such as "Thought:" begins a line, in upper or lower case. Text before the first label is a thought. Text
    after "Observation:" is ignored, because the model made it up. A final answer ends with the reply. An action is
    NAME(KEY=VALUE, ...), an object such as {"name": ..., "arguments": {...}}, or NAME with an "Action Input:" below.
    After MOST_UNREADABLE unreadable actions, further actions and all that follows are ignored.
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
    """Remove a closing code fence from an answer if its opening fence is before the label."""
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


class ReplyFormat(Protocol):
    """How tools are offered to a model, and how its replies are read."""

    name: str
    offers_tools: bool
    """Whether chat requests carry the schemas of the tools."""

    def system_prompt(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the system prompt for tools in OpenAI's format; "" for no prompt."""

    def read(self, message: Message, parameters: Mapping[str, list[str]], chat_number: int) -> list[Part]:
        """Return the parts of a reply in their order."""

    def results(self, parts: Sequence[Part], results: Sequence[Message]) -> list[Message]:
        """Return the messages with the results of a reply's calls. `results` has a tool message for each call."""


class ReActFormat:
    """Thought, Action and Final Answer in the text of a reply."""

    name = "react"
    offers_tools = False

    def system_prompt(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt with the name, the description and the parameters of each tool."""
        lines = [describe_tool(tool["function"]) for tool in tools]
        return REACT_PROMPT.format(tools="\n".join(["Tools:", *lines]) if lines else NO_TOOLS)

    def read(self, message: Message, parameters: Mapping[str, list[str]], chat_number: int) -> list[Part]:
        """Return the parts of the text. Each call gets an id that is unique in the rollout."""
        content = message.get("content")
        found = read_reply(content if isinstance(content, str) else "", parameters)
        return [
            Call(part.text, part.name, part.arguments, f"call_{chat_number}_{index}")
            if isinstance(part, Call) else part
            for index, part in enumerate(found, 1)
        ]  # fmt: skip

    def results(self, parts: Sequence[Part], results: Sequence[Message]) -> list[Message]:
        """Return one user message with an observation for each action."""
        left = iter(results)
        texts = [
            f"{OBSERVATION}{next(left)['content'] if isinstance(part, Call) else f'Error: {part.error}'}"
            for part in parts
            if isinstance(part, Call | Unreadable)
        ]
        return [{"role": "user", "content": "\n".join(texts)}]


class NativeFormat:
    """The tool calls of a message in OpenAI's format. A reply without a call is the final answer."""

    name = "native"
    offers_tools = True

    def system_prompt(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return no prompt, because chat requests carry the schemas."""
        return ""

    def read(self, message: Message, parameters: Mapping[str, list[str]], chat_number: int) -> list[Part]:
        """Return the text as a thought or an answer, and the calls."""
        content = message.get("content")
        text = content.strip() if isinstance(content, str) else ""
        calls = message.get("tool_calls") or ()
        parts: list[Part] = [Thought(text) if calls else Answer(text)] if text else []
        return parts + [_native_call(call) for call in calls]

    def results(self, parts: Sequence[Part], results: Sequence[Message]) -> list[Message]:
        """Return the tool messages."""
        return list(results)


def _native_call(call: Any) -> Part:
    text = (
        json.dumps(call.get("function"), ensure_ascii=False, default=str) if isinstance(call, Mapping) else repr(call)
    )
    try:
        call_id, name, arguments = get_tool_call_info(call, blank={})
    except ToolArgumentError as error:
        return Unreadable(text, str(error), error.tool_call_id or "unknown", error.tool_name or "")
    return Call(text, name, arguments, call_id)


def describe_tool(function: Mapping[str, Any]) -> str:
    """Return a tool's name, description and parameters as lines of a prompt."""
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    lines = [f"- {function['name']}: {function.get('description') or 'no description'}"]
    for name, parameter in (schema.get("properties") or {}).items():
        kind = parameter.get("type") or json.dumps({k: v for k, v in parameter.items() if k != "description"})
        choices = f", one of {json.dumps(parameter['enum'])}" if "enum" in parameter else ""
        need = "required" if name in required else "optional"
        about = f": {parameter['description']}" if parameter.get("description") else ""
        lines.append(f"    {name} ({kind}, {need}{choices}){about}")
    return "\n".join(lines)


FORMATS: dict[str, ReplyFormat] = {"react": ReActFormat(), "native": NativeFormat()}


def parameters_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the parameters of each tool in OpenAI's format."""
    functions = [tool["function"] for tool in tools]
    return {f["name"]: list((f.get("parameters") or {}).get("properties") or ()) for f in functions}
