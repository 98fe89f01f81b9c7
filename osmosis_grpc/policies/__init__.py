"""Policies answer chats. A policy is any callable, async or not, from ChatRequest to ChatResponse.

A trainer passes its own to Trainer; those here script, mock, or ask a model server.
"""

from collections.abc import Awaitable, Callable

from osmosis_grpc.policies.every_tool import EveryToolMock
from osmosis_grpc.policies.mock import ToolCallingMock
from osmosis_grpc.policies.openai import OpenAIPolicy
from osmosis_grpc.policies.scripted import EchoPolicy, ScriptedPolicy
from osmosis_grpc.policies.threads import ThreadedPolicy
from osmosis_grpc.types import ChatRequest, ChatResponse

Policy = Callable[[ChatRequest], ChatResponse | Awaitable[ChatResponse]]
"""Answers a trainer's chats. The trainer enters one that is an async context manager, and leaves it at its end;
it may be entered more than once."""

__all__ = [
    "EchoPolicy",
    "EveryToolMock",
    "OpenAIPolicy",
    "Policy",
    "ScriptedPolicy",
    "ThreadedPolicy",
    "ToolCallingMock",
]
