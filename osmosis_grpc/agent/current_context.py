"""The rollout and the tool call of the running code, for helpers that have no context."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from osmosis_grpc.agent.ports import Session

current_session: ContextVar[Session | None] = ContextVar("osmosis_grpc_session", default=None)
"""Set in the agent's task and in the tasks that it starts; None elsewhere."""


@dataclass(slots=True)
class ToolRun:
    """A tool call that a helper ran."""

    call_id: str = ""
    name: str = ""
    """Empty if it is not known, like the id."""
    error: BaseException | None = None
    """The tool's exception, also one that the agent handles while it calls a helper."""
    error_text: str = ""
    """The error that the model gets; empty without one."""
    latency: float | None = None
    """Seconds; None if no helper ran the call."""


current_run: ContextVar[ToolRun | None] = ContextVar("osmosis_grpc_tool_run", default=None)
"""The call that a helper runs; None elsewhere."""

tool_watcher: ContextVar[Callable[[ToolRun], None] | None] = ContextVar("osmosis_grpc_tool_watcher", default=None)
"""Called with each call that a helper ran, and each error that a helper got. Set by validate --run."""
