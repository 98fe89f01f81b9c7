"""Stores the replies of one rollout by id, for clients of OpenAI's Responses API, which name the reply to continue."""

from collections.abc import Sequence

from osmosis_grpc.agent.message_keys import History, message_key
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of all histories. The oldest reply is dropped first."""


class StoredReplies:
    """Maps the ids of replies to their histories, which include the reply but not the system message."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._histories: dict[str, tuple[list[Message], int]] = {}
        self._free = max_bytes

    def add(self, reply_id: str, history: History, reply: Message) -> None:
        """Keep a reply and its history."""
        size = sum(history.sizes) + message_key(reply)[1]
        self._histories[reply_id] = ([*_without_system(history.messages), reply], size)
        self._free -= size
        while self._free < 0 and len(self._histories) > 1:
            _, freed = self._histories.pop(next(iter(self._histories)))
            self._free += freed

    def continued(self, response_id: str, messages: Sequence[Message]) -> list[Message]:
        """Return the history of a response, followed by `messages`. Their system message replaces the earlier one.

        Raises InvalidArgument if this rollout has no response with the id.
        """
        stored = self._histories.get(response_id.removeprefix("resp_"))
        if stored is None:
            raise InvalidArgument("previous_response_id", f"{response_id:.80} is not a stored response of this rollout")
        new = _without_system(messages)
        return [*messages[: len(messages) - len(new)], *stored[0], *new]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    return list(messages[1:] if messages and messages[0].get("role") == "system" else messages)
