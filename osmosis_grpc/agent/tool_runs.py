"""The tool calls of a rollout: the chat whose reply has each call, and the call that a helper is running.

Call ids are unique within a sample only.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_CALLS = 4096
"""The most tool calls of a rollout that are kept, the newest ones."""


class CallOrigin(NamedTuple):
    """The chat whose reply has a tool call."""

    sample: str = ""
    """Empty if the chat is not known."""
    chat_number: int = 0


class CallOrigins:
    """The tool calls of one rollout's replies, as the agent got them."""

    __slots__ = ("_by_id", "_calls")

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Mapping[str, Any], CallOrigin]] = {}
        """Each call and its origin, by the identity of the call. The reference to the call keeps its identity."""
        self._by_id: dict[str, dict[str, int]] = {}
        """The newest chat of each sample that has a call, by call id."""

    def add(self, message: Mapping[str, Any], sample: str, chat_number: int) -> None:
        """Remember the calls of a reply. `message` is the object that the agent gets."""
        for call in message.get("tool_calls") or ():
            if isinstance(call, dict):
                self._calls[id(call)] = call, CallOrigin(sample, chat_number)
                self._by_id.setdefault(str(call.get("id") or ""), {})[sample] = chat_number
        while len(self._calls) > MAX_CALLS:
            call, _ = self._calls.pop(next(iter(self._calls)))
            self._by_id.pop(str(call.get("id") or ""), None)

    def find(self, call: Any, sample: str = "") -> CallOrigin:
        """Return the chat whose reply has a call, in `sample` if that is known.

        The object that the agent got in a reply is always found. Otherwise, without `sample`, the chat is unknown if
        several samples have a call with this id.
        """
        known = self._calls.get(id(call))
        if known is not None and known[0] is call:
            return known[1]
        call_id = call.get("id") if isinstance(call, Mapping) else None
        chats = self._by_id.get(str(call_id), {}) if call_id else {}
        if sample:
            return CallOrigin(sample, chats[sample]) if sample in chats else CallOrigin()
        return CallOrigin(*next(iter(chats.items()))) if len(chats) == 1 else CallOrigin()


@dataclass(slots=True)
class ToolRun:
    """A tool call that a helper ran."""

    call_id: str = ""
    name: str = ""
    """Empty if the name is not known. `call_id` is also empty if it is not known."""
    error: BaseException | None = None
    """The tool's exception, or one that the agent was handling when it called a helper."""
    error_text: str = ""
    """The error text that the model gets; empty without an error."""
    described: str = ""
    """The same for people, with the type and the place of the exception, if the tool itself raised it."""
    latency: float | None = None
    """Seconds; None if no helper ran the call."""
    sample: str = ""
    """The sample whose reply has the call; empty if it is not known."""
    chat_number: int = 0
    """The number of the chat whose reply has the call; 0 if it is not known."""


current_run: ContextVar[ToolRun | None] = ContextVar("osmosis_grpc_tool_run", default=None)
"""The call that a helper runs in this task; None in other tasks."""

tool_watcher: ContextVar[Callable[[ToolRun], None] | None] = ContextVar("osmosis_grpc_tool_watcher", default=None)
"""validate --run sets this function. Helpers call it with each call that they ran and each error that they got."""
