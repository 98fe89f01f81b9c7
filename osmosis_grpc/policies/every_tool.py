"""A mock model that calls every offered tool and then answers.

validate --run tries agents with this mock. osmosis_grpc.policies.arguments makes the arguments from each tool's JSON
Schema. osmosis_grpc.policies.formula makes the tokens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osmosis_grpc.policies.arguments import arguments_for, mapping
from osmosis_grpc.policies.scripted import Reply, answer
from osmosis_grpc.protocol.types import ChatPurpose, ChatRequest, ChatResponse, Message
from osmosis_grpc.protocol.types.chat import call_prefix

MOST_CHATS = 8
"""The mock calls tools only in this many chats of a sample. Then it answers, even if the history lacks the calls."""


class EveryToolMock:
    """Calls the first offered tool alone, then all other tools at once, and then replies with `answer`.

    Each tool is called once. A tool that is first offered in a later chat is called in that chat. With `tool_choice`
    "none", no tool is called. If `tool_choice` names a tool, only that tool is called.
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
