"""Policies with fixed replies."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.policies import formula
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message, VersionSpan

Reply = str | Message


def answer(request: ChatRequest, reply: Reply, *, tokens: int | None = None, version: str = "") -> ChatResponse:
    """Return a reply whose tokens depend on its place in the rollout (see formula.py), not on its text.

    Args:
        request: The chat.
        reply: A text or a message.
        tokens: How many tokens the reply has; 8 to 32 by default.
        version: The weight version of the reply.
    """
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
    block = formula.reply_tokens(request.rollout_id, request.sample, request.chat_number, tokens)
    prompt = formula.prompt_ids(request)
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(block.ids),
        "total_tokens": len(prompt) + len(block.ids),
    }
    return ChatResponse(
        message=message,
        finish_reason="tool_calls" if message.get("tool_calls") else "stop",
        usage=usage,
        tokens=block,
        prompt_ids=prompt,
        versions=(VersionSpan(version, len(block.ids)),) if version else (),
    )


class ScriptedPolicy:
    """Answers chat n of every sample with reply n. A chat beyond the script raises FailedPrecondition.

    Args:
        script: A list of replies, a mapping from rollout id to such a list, or a function of the ChatRequest. A reply
            is a text or a message.
        tokens: How many tokens each reply has; 8 to 32 by default.
        latency: How many seconds a reply takes.
        version: The weight version of the replies.
    """

    def __init__(
        self,
        script: Sequence[Reply] | Mapping[str, Sequence[Reply]] | Callable[[ChatRequest], Reply],
        *,
        tokens: int | None = None,
        latency: float = 0.0,
        version: str = "",
    ) -> None:
        self._script: Any = script
        self._tokens = tokens
        self._latency = latency
        self._version = version

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        if self._latency:
            await asyncio.sleep(self._latency)
        return answer(request, self._reply(request), tokens=self._tokens, version=self._version)

    def _reply(self, request: ChatRequest) -> Reply:
        script = self._script
        if callable(script):
            return script(request)  # type: ignore[no-any-return]
        replies = script.get(request.rollout_id, ()) if isinstance(script, Mapping) else script
        if request.chat_number > len(replies):
            raise FailedPrecondition(f"the script has {len(replies)} replies, and this is chat {request.chat_number}")
        return replies[request.chat_number - 1]  # type: ignore[no-any-return]


class EchoPolicy:
    """Replies with the text of the last message."""

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        content = request.messages[-1].get("content") if request.messages else ""
        return answer(request, content if isinstance(content, str) else "")
