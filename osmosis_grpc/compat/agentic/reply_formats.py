"""The two formats in which a model calls tools: as text with labels, and as the tool calls of its message."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from osmosis_grpc.agent.tool_calls import get_tool_call_info
from osmosis_grpc.compat.agentic.react_format import read_reply
from osmosis_grpc.compat.agentic.reading import Answer, Call, Part, Thought, Unreadable
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import Message

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


class ReplyFormat(Protocol):
    """How tools are offered to a model, and how its replies are read."""

    name: str
    offers_tools: bool
    """Whether the schemas of the tools travel beside the messages."""

    def system_prompt(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the system prompt for tools in OpenAI's format; "" for none."""

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
        """Return no prompt, because the schemas travel beside the messages."""
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
