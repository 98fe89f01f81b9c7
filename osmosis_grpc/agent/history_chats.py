"""Asks the chats of one rollout for programs and libraries that send their whole history and write it in their own way.

A history is put into the spelling of the earlier chats first (conversations.py), so its tokens stay in one segment.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.conversations import Conversations
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.errors import CallError, InvalidArgument
from osmosis_grpc.types import ChatRef, Message
from osmosis_grpc.types.requests import with_params

POLICY = "policy"
"""The name of the model. `policy/NAME` is the trainer's policy NAME."""
_RESERVED = frozenset(inspect.signature(RolloutContext.chat).parameters) - {"params"}
"""Names that are arguments of ctx.chat, so no sampling parameter can have them."""


class HistoryChats:
    """The chats of one rollout. Its conversations are found by their histories, or named."""

    def __init__(self, context: RolloutContext) -> None:
        self.failure: CallError | None = None
        """The error of the newest chat that ended; None if it got its reply."""
        self.conversations = Conversations()
        self._context = context
        self._unused: dict[tuple[str, ChatRef | None], str] = {}
        """A sample without a chat, because its request was refused, by policy and parent. Another request gets it."""

    async def ask(
        self,
        history: History,
        *,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
        model: str = POLICY,
        sample: str = "",
        written: Callable[[CompletionsResult], Message] | None = None,
    ) -> CompletionsResult:
        """Return the reply to a history. Without `sample`, the history decides which sample it continues.

        `written` returns the reply as the program is going to write it in later histories. Without it, the tree finds
        a reply that has the same text and the same tool calls.

        Sampling parameters that are not in `params` are the trainer's completion_params. Raises InvalidArgument for a
        history that cannot be sent, and what RolloutContext.chat raises.
        """
        params = with_params(self._context.request.completion_params, params)
        for name in sorted(_RESERVED & params.keys()):
            raise InvalidArgument(name, "is not a sampling parameter")
        place = self.conversations.place(history, sample)
        begins = _policy(model), place.parent
        name, begun = place.sample or self._unused.pop(begins, ""), self._context.samples
        try:
            if not name or name not in begun:
                new = name or (None if begun else "main")
                name = self._context.add_sample(new, policy=begins[0], parent=begins[1])
            result = await self._context.chat(place.messages, sample=name, tools=tools, **params)
        except BaseException as error:
            self.conversations.failed(place, name)
            self.failure = error if isinstance(error, CallError) else self.failure
            if isinstance(error, ValueError):
                if name and not place.sample:
                    self._unused[begins] = name
                raise InvalidArgument("", str(error)) from None
            raise
        self.failure = None
        rewritten = None if written is None else written(result)
        self.conversations.answered(place, name, result.chat_number, result.message, rewritten)
        return result


def _policy(model: str) -> str:
    """Return the name of the trainer's policy that a model's name asks for; empty for the only policy."""
    return model.partition("/")[2] if model.startswith(f"{POLICY}/") else ""
