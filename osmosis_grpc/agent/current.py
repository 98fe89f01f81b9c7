"""The rollout and the tool call that the running code belongs to, for helpers that are not handed a context."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from osmosis_grpc.agent.ports import Session

current_session: ContextVar[Session | None] = ContextVar("osmosis_grpc_session", default=None)
"""Set in the agent's task and whatever it starts; None elsewhere."""


@dataclass(slots=True)
class ToolRun:
    """A tool call as the helpers saw it. What an agent does without them is not seen."""

    call_id: str = ""
    """Empty where it is not known."""
    name: str = ""
    """Empty where it is not known."""
    error: BaseException | None = None
    """What the tool raised, also where the agent caught it and a helper was called while it was handled."""
    error_text: str = ""
    """What the model was told went wrong; empty when nothing did."""
    latency: float | None = None
    """Seconds; None when no helper ran the call."""


current_run: ContextVar[ToolRun | None] = ContextVar("osmosis_grpc_tool_run", default=None)
"""The call that a helper is running; None elsewhere."""

tool_watcher: ContextVar[Callable[[ToolRun], None] | None] = ContextVar("osmosis_grpc_tool_watcher", default=None)
"""Called with each call that a helper ran, and each error that a helper was given. Set by validate --run."""
