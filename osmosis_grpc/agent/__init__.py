"""The agent API: the base class, the context, the helpers, and the ports behind them.

Agent authors import these names from osmosis_grpc.rollout.
"""

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.results import CompletionsResult, RolloutResult

__all__ = ["CompletionsResult", "RolloutAgentLoop", "RolloutContext", "RolloutResult"]
