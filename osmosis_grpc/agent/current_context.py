"""The session and the tool call of the running code, for helpers that get no context as a parameter."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from osmosis_grpc.agent.ports import Session

current_session: ContextVar[Session | None] = ContextVar("osmosis_grpc_session", default=None)
"""The session, in the agent's task and in the tasks that this task starts; None in other tasks."""


@dataclass(slots=True)
class ToolRun:
    """A tool call that a helper ran."""

    call_id: str = ""
    name: str = ""
    """Empty if the name is not known. `call_id` is also empty if it is not known."""
    error: BaseException | None = None
    """The tool's exception. It can be an exception that the agent handles while the agent calls a helper."""
    error_text: str = ""
    """The error text that the model gets; empty without an error."""
    latency: float | None = None
    """Seconds; None if no helper ran the call."""
    sample: str = ""
    """The sample whose reply asked for the call; empty if it is not known."""
    chat_number: int = 0
    """The number of the chat whose reply asked for the call; 0 if it is not known."""


current_run: ContextVar[ToolRun | None] = ContextVar("osmosis_grpc_tool_run", default=None)
"""The call that a helper runs in this task; None in other tasks."""

tool_watcher: ContextVar[Callable[[ToolRun], None] | None] = ContextVar("osmosis_grpc_tool_watcher", default=None)
"""validate --run sets this function. Helpers call it with each call that they ran and each error that they got."""
