"""Policies: what answers chats. A policy is any async callable from ChatRequest to ChatResponse.

A trainer hands its own to TrainerServer; those here script, mock, or ask a model server.
"""

from osmosis_grpc.agent.ports import ChatModel as Policy
from osmosis_grpc.policies.mock import ToolCallingMock
from osmosis_grpc.policies.openai import OpenAIPolicy
from osmosis_grpc.policies.scripted import EchoPolicy, ScriptedPolicy

__all__ = ["EchoPolicy", "OpenAIPolicy", "Policy", "ScriptedPolicy", "ToolCallingMock"]
