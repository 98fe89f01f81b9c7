"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make."""

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
    LLMConfig,
    LLMFunction,
    OpenAIFunction,
    policy_of,
)
from osmosis_grpc.compat.agentic.llm_calls import LLMError, Retries
from osmosis_grpc.compat.agentic.rollout import AgenticRollout
from osmosis_grpc.compat.agentic.runnable import agent_runnable
from osmosis_grpc.compat.agentic.tools import list_tools, register_tool
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
from osmosis_grpc.tools.base_tool import BaseTool, ToolRegistry

react = agent_runnable(ReActAgent())
tool = agent_runnable(ToolAgent())
coding = agent_runnable(CodingAgent())
"""The agents for `serve -m osmosis_grpc.agentic:NAME`."""

__all__ = [
    "AgenticRollout",
    "AgenticRolloutConfig",
    "AnthropicFunction",
    "BaseAgent",
    "BaseTool",
    "CheckAnswer",
    "ClaudeAPIClient",
    "CodingAgent",
    "Interaction",
    "LLMConfig",
    "LLMError",
    "LLMFunction",
    "OpenAIFunction",
    "ReActAgent",
    "Reaction",
    "Retries",
    "Statistics",
    "StepType",
    "StopReason",
    "ToolAgent",
    "ToolRegistry",
    "Trajectory",
    "TrajectoryClient",
    "TrajectorySaveError",
    "TrajectoryStep",
    "TrajectoryView",
    "agent_runnable",
    "clear_registry",
    "dump_trajectories",
    "get_agent_class",
    "list_agents",
    "list_tools",
    "load_trajectories",
    "policy_of",
    "register_agent",
    "register_interaction",
    "register_tool",
    "statistics_of",
    "trajectory_of",
]
