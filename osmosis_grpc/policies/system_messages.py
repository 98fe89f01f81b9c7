"""Handles system messages in the middle of a history, which some chat templates refuse.

A policy sends a history as the agent wrote it. If the template or the model server refuses it, the policy asks once
more with the late system messages folded into user messages, and marks the reply.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message
from osmosis_grpc.protocol.types.samples import SYSTEM_FOLDED


async def asked_folding(request: ChatRequest, ask: Callable[[ChatRequest], Awaitable[ChatResponse]], /) -> ChatResponse:
    """Ask for a reply. If the history is refused and has late system messages, ask once more with them folded.

    A reply to the folded history has `extra["system_messages_folded"]`. If the folded history is refused, too, raises
    the error of the second refusal.
    """
    try:
        return await ask(request)
    except ContextLengthExceeded:
        raise
    except InvalidArgument:
        messages = folded(request.messages)
        if messages == list(request.messages):
            raise
    prefix = len(folded(request.messages[: request.prefix_len]))
    response = await ask(replace(request, messages=messages, prefix_len=prefix))
    return replace(response, extra={**response.extra, SYSTEM_FOLDED: True})


def folded(messages: Sequence[Message]) -> list[Message]:
    """Return a history whose only system message is the first one.

    System messages at the beginning are joined. A later one is joined to a neighbouring user message, or else becomes a
    user message. Developer messages count as system messages.
    """
    made: list[Message] = []
    told = False
    """Whether the previous message was a late system message, now in a user message."""
    for message in messages:
        role = "system" if message.get("role") == "developer" else message.get("role")
        last = made[-1] if made else {}
        if role == "system" and not (made and last.get("role") != "system"):
            made[:] = [{"role": "system", "content": _joined(last.get("content"), message.get("content"))}]
        elif role == "system" and last.get("role") == "user":
            made[-1] = {**last, "content": _joined(last.get("content"), message.get("content"))}
        elif role == "user" and told and last.get("role") == "user":
            made[-1] = {**message, "content": _joined(last.get("content"), message.get("content"))}
        elif role == "system":
            made.append({"role": "user", "content": message.get("content")})
        else:
            made.append(message)
        told = role == "system" and made[-1].get("role") == "user"
    return made


def first_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages up to the first user message, and the system messages that directly follow it."""
    end = next((n for n, message in enumerate(messages) if message["role"] == "user"), 0) + 1
    while end < len(messages) and messages[end]["role"] == "system":
        end += 1
    return list(messages[:end])


def check_late_system(messages: Sequence[Message], prompt: Callable[[], str]) -> None:
    """Raise InvalidArgument if the prompt lacks a system message that is not the first message.

    Some templates drop such messages without an error. `prompt` returns the text. It is only called if there are any.
    """
    late = [message.get("content") for message in messages[1:] if message.get("role") in ("system", "developer")]
    if not late:
        return
    dense = _dense(prompt())
    if any(isinstance(text, str) and _dense(text) not in dense for text in late):
        raise InvalidArgument("messages", "the chat template leaves out a late system message")


def _dense(text: str) -> str:
    return "".join(text.split())


def _joined(content: Any, more: Any) -> Any:
    """Join two contents: to a text if both are texts, else to a list of parts."""
    if not content or not more:
        return content or more
    if isinstance(content, str) and isinstance(more, str):
        return f"{content}\n\n{more}"
    return [*_parts(content), *_parts(more)]


def _parts(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content}]
