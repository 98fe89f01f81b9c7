"""The names of the Agentic Rollout Library: agents, their configuration, and the trajectories that they make."""

from osmosis_grpc.agentic.agent_registry import clear_registry, get_agent_class, list_agents, register_agent
from osmosis_grpc.agentic.base_agent import BaseAgent
from osmosis_grpc.agentic.coding_agent import CodingAgent
from osmosis_grpc.agentic.config import AgenticRolloutConfig
from osmosis_grpc.agentic.interactions import CheckAnswer, Interaction, Reaction, register_interaction
from osmosis_grpc.agentic.llm import LLMFunction, policy_of
from osmosis_grpc.agentic.react_agent import ReActAgent
from osmosis_grpc.agentic.rollout import AgenticRollout
from osmosis_grpc.agentic.runnable import agent_runnable
from osmosis_grpc.agentic.saving import TrajectorySaveError
from osmosis_grpc.agentic.tool_agent import ToolAgent
from osmosis_grpc.agentic.tool_registry import list_tools, register_tool
from osmosis_grpc.agentic.trajectory import StepType, StopReason, Trajectory, TrajectoryStep
from osmosis_grpc.agentic.view import TrajectoryView, trajectory_of

react = agent_runnable(ReActAgent())
tool = agent_runnable(ToolAgent())
coding = agent_runnable(CodingAgent())
"""The agents for `serve -m osmosis_grpc.agentic:NAME`."""

__all__ = [
    "AgenticRollout",
    "AgenticRolloutConfig",
    "BaseAgent",
    "CheckAnswer",
    "CodingAgent",
    "Interaction",
    "LLMFunction",
    "ReActAgent",
    "Reaction",
    "StepType",
    "StopReason",
    "ToolAgent",
    "Trajectory",
    "TrajectorySaveError",
    "TrajectoryStep",
    "TrajectoryView",
    "agent_runnable",
    "clear_registry",
    "coding",
    "get_agent_class",
    "list_agents",
    "list_tools",
    "policy_of",
    "react",
    "register_agent",
    "register_interaction",
    "register_tool",
    "tool",
    "trajectory_of",
]
