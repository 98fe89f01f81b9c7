"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make."""

from typing import NoReturn

from osmosis_grpc.compat.agentic.agent_registry import clear_registry, get_agent_class, list_agents, register_agent
from osmosis_grpc.compat.agentic.base_agent import BaseAgent
from osmosis_grpc.compat.agentic.built_in_agent import ReActAgent, ToolAgent
from osmosis_grpc.compat.agentic.coding_agent import CodingAgent
from osmosis_grpc.compat.agentic.config import AgenticRolloutConfig
from osmosis_grpc.compat.agentic.files import TrajectorySaveError, dump_trajectories, load_trajectories
from osmosis_grpc.compat.agentic.interactions import CheckAnswer, Interaction, Reaction, register_interaction
from osmosis_grpc.compat.agentic.llm import (
    AnthropicFunction,
    ClaudeAPIClient,
    LLMAPIClient,
    LLMConfig,
    LLMFunction,
    OpenAIFunction,
    policy_of,
)
from osmosis_grpc.compat.agentic.llm_calls import LLMError, Retries
from osmosis_grpc.compat.agentic.older_tools import (
    AgenticBaseTool,
    BaseAgenticTool,
    BashExecutorTool,
    CalculatorTool,
    FileEditorTool,
    FinishTool,
    SearchTool,
    SimpleAgenticTool,
    ToolCallInfo,
    ToolResult,
    create_openai_tool_schema,
)
from osmosis_grpc.compat.agentic.rollout import AgenticRollout, create_agentic_rollout
from osmosis_grpc.compat.agentic.runnable import agent_runnable
from osmosis_grpc.compat.agentic.tools import list_tools, register_tool, register_tool_instance
from osmosis_grpc.compat.agentic.trajectory import (
    Statistics,
    StepType,
    StopReason,
    Trajectory,
    TrajectoryStep,
    statistics_of,
)
from osmosis_grpc.compat.agentic.trajectory_client import TrajectoryClient
from osmosis_grpc.compat.agentic.view import TrajectoryView, trajectory_of
from osmosis_grpc.compat.older_sentences import LIBRARY
from osmosis_grpc.tools.base_tool import BaseTool, ToolRegistry

ReactAgent = ReActAgent

react = agent_runnable(ReActAgent())
tool = agent_runnable(ToolAgent())
coding = agent_runnable(CodingAgent())
"""The agents for `serve -m osmosis_grpc.agentic:NAME`."""


def __getattr__(name: str) -> NoReturn:
    """Raise ImportError with a sentence for a name that only the library has, and AttributeError for any other."""
    if name in LIBRARY:
        raise ImportError(f"{name} is not in {__name__}: {LIBRARY[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AgenticBaseTool",
    "AgenticRollout",
    "AgenticRolloutConfig",
    "AnthropicFunction",
    "BaseAgent",
    "BaseAgenticTool",
    "BaseTool",
    "BashExecutorTool",
    "CalculatorTool",
    "CheckAnswer",
    "ClaudeAPIClient",
    "CodingAgent",
    "FileEditorTool",
    "FinishTool",
    "Interaction",
    "LLMAPIClient",
    "LLMConfig",
    "LLMError",
    "LLMFunction",
    "OpenAIFunction",
    "ReActAgent",
    "ReactAgent",
    "Reaction",
    "Retries",
    "SearchTool",
    "SimpleAgenticTool",
    "Statistics",
    "StepType",
    "StopReason",
    "ToolAgent",
    "ToolCallInfo",
    "ToolRegistry",
    "ToolResult",
    "Trajectory",
    "TrajectoryClient",
    "TrajectorySaveError",
    "TrajectoryStep",
    "TrajectoryView",
    "agent_runnable",
    "clear_registry",
    "create_agentic_rollout",
    "create_openai_tool_schema",
    "dump_trajectories",
    "get_agent_class",
    "list_agents",
    "list_tools",
    "load_trajectories",
    "policy_of",
    "register_agent",
    "register_interaction",
    "register_tool",
    "register_tool_instance",
    "statistics_of",
    "trajectory_of",
]
