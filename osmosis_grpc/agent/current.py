"""The rollout that the running code belongs to, for helpers that are not handed a context."""

from contextvars import ContextVar

from osmosis_grpc.agent.ports import Session

current_session: ContextVar[Session | None] = ContextVar("osmosis_grpc_session", default=None)
"""Set in the agent's task and whatever it starts; None elsewhere."""
