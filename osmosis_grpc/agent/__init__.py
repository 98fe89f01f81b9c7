"""What authors of agents write: agent loops, tools, workflows and graders.

    from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult, tool

The modules in _MODULES need pydantic. They are imported at the first use of their names, because every program with a
policy imports this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osmosis_grpc.agent.context import RolloutContext, get_rollout_context
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.results import CompletionsResult, RolloutResult
from osmosis_grpc.agent.reward_decorator import osmosis_reward
from osmosis_grpc.agent.sync_context import SyncRolloutContext
from osmosis_grpc.agent.tool_calls import create_tool_error_result, create_tool_result, execute_tool_calls
from osmosis_grpc.protocol.errors import CallError, RolloutEndedError, ToolExecutionError
from osmosis_grpc.protocol.types import ChatPurpose, RolloutRequest

if TYPE_CHECKING:
    from osmosis_grpc.agent.grader import Grader, GraderContext, RolloutSample
    from osmosis_grpc.agent.grading import grade_recorded
    from osmosis_grpc.agent.tool_decorator import tool
    from osmosis_grpc.agent.workflow import (
        AgentWorkflow,
        AgentWorkflowConfig,
        AgentWorkflowContext,
        ConcurrencyConfig,
        GraderConfig,
    )
    from osmosis_grpc.agent.workflow_output import AgentWorkflowOutput, SampleSource
    from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable

__all__ = [
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "CallError",
    "ChatPurpose",
    "CompletionsResult",
    "ConcurrencyConfig",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutEndedError",
    "RolloutRequest",
    "RolloutResult",
    "RolloutSample",
    "SampleSource",
    "SyncRolloutContext",
    "ToolExecutionError",
    "WorkflowRunnable",
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_rollout_context",
    "grade_recorded",
    "osmosis_reward",
    "tool",
]

_MODULES = {
    "AgentWorkflow": "osmosis_grpc.agent.workflow",
    "AgentWorkflowConfig": "osmosis_grpc.agent.workflow",
    "AgentWorkflowContext": "osmosis_grpc.agent.workflow",
    "AgentWorkflowOutput": "osmosis_grpc.agent.workflow_output",
    "ConcurrencyConfig": "osmosis_grpc.agent.workflow",
    "Grader": "osmosis_grpc.agent.grader",
    "GraderConfig": "osmosis_grpc.agent.workflow",
    "GraderContext": "osmosis_grpc.agent.grader",
    "RolloutSample": "osmosis_grpc.agent.grader",
    "SampleSource": "osmosis_grpc.agent.workflow_output",
    "WorkflowRunnable": "osmosis_grpc.agent.workflow_runnable",
    "grade_recorded": "osmosis_grpc.agent.grading",
    "tool": "osmosis_grpc.agent.tool_decorator",
}

if not TYPE_CHECKING:  # otherwise a type checker would accept every name of the module

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
