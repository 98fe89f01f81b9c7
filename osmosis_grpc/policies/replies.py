"""The interface of renderers to a token policy: prompts as ids, and replies as messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_grpc.protocol.types import ChatRequest, Ids, Message, jsontext


@dataclass(frozen=True, slots=True, eq=False)
class PromptIds:
    """The prompt of a chat."""

    ids: Ids
    """uint32, shape (p,): the whole prompt."""
    known: int
    """How many of the first ids come from ChatRequest.known_ids; 0 if the prompt was rendered whole."""
    drifted: bool
    """Whether the prompt was rendered whole although the request has known_ids."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that was read from its tokens."""

    message: Message
    """The assistant message. Reasoning is in `reasoning_content`, and is not searched for tool calls."""
    stop: str = ""
    """The stop text that ended the reply; empty if none did."""
    unread: tuple[str, ...] = ()
    """What is wrong with each malformed tool call. Such a call stays in the content as text."""


class Renderer(Protocol):
    """Makes prompts of chats, and reads replies."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a turn, at which the generator must stop; empty if the model server knows them."""
        ...

    def prompt_ids(self, request: ChatRequest) -> PromptIds:
        """Return the prompt of a chat. Raises InvalidArgument for messages that cannot be rendered.

        Args:
            request: The chat.
        """
        ...

    def reply(
        self,
        ids: Ids,
        *,
        prompt: Ids,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stop: Sequence[str] = (),
        call_prefix: str = "call",
    ) -> Reply:
        """Read a reply from its sampled tokens.

        Args:
            ids: uint32, shape (n,): the sampled tokens.
            prompt: uint32, shape (p,): the prompt from which they were sampled.
            tools: The tools of the chat. Without any, the reply has no tool calls.
            stop: Stop texts. The reply ends before the first of them.
            call_prefix: Calls get the ids PREFIX_0, PREFIX_1 and so on.
        """
        ...


def before_stop(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Return the text before its first stop text, and the stop text. OpenAI also leaves it out of a message.

    Args:
        text: The text of a reply.
        stop: The stop texts.
    """
    ends = [(at, end) for end in stop if (at := text.find(end)) >= 0]
    at, matched = min(ends, default=(len(text), ""))
    return text[:at], matched


def call_of(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call in OpenAI's format.

    Args:
        call_id: The id of the call.
        name: The name of the function.
        arguments: Its arguments.
    """
    function = {"name": name, "arguments": jsontext.render(dict(arguments))}
    return {"id": call_id, "type": "function", "function": function}
