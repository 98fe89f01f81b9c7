"""Policies answer chats. A policy is any callable, async or not, from ChatRequest to ChatResponse.

Pass one to Trainer. The policies of this package give scripted replies, mock a model, or ask a model server.
"""

from collections.abc import Awaitable, Callable

from osmosis_grpc.policies.anthropic import AnthropicPolicy
from osmosis_grpc.policies.chat_renderer import ChatRenderer, Tokenizer
from osmosis_grpc.policies.every_tool import EveryToolMock
from osmosis_grpc.policies.family_renderer import FamilyRenderer, FamilyTokenizer, renderer_of
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest, TokenGenerator
from osmosis_grpc.policies.litellm import LiteLLMPolicy
from osmosis_grpc.policies.media import Media, Modality
from osmosis_grpc.policies.mock import ToolCallingMock
from osmosis_grpc.policies.openai import OpenAIPolicy
from osmosis_grpc.policies.replies import PromptIds, Renderer, Reply
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.policies.scripted import EchoPolicy, ScriptedPolicy
from osmosis_grpc.policies.template_tokenizer import TemplateTokenizer
from osmosis_grpc.policies.threads import ThreadedPolicy
from osmosis_grpc.policies.token_policy import TokenPolicy, TokenPolicyConfig
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse

Policy = Callable[[ChatRequest], ChatResponse | Awaitable[ChatResponse]]
"""Answers a trainer's chats.

If the policy is an async context manager, the trainer enters it when the trainer starts and exits it at the end.
Several trainers may enter the same policy.

When a reply is no longer needed, the trainer cancels the task of an async policy, and then calls `cancel(request)` if
the policy has such a method. It is called on the thread of the event loop and must not block."""

__all__ = [
    "AnthropicPolicy",
    "ChatRenderer",
    "EchoPolicy",
    "EveryToolMock",
    "FamilyRenderer",
    "FamilyTokenizer",
    "FinishReason",
    "GenerateRequest",
    "Generated",
    "LiteLLMPolicy",
    "Media",
    "Modality",
    "OpenAIPolicy",
    "Policy",
    "PromptIds",
    "Renderer",
    "Reply",
    "Sampling",
    "ScriptedPolicy",
    "TemplateTokenizer",
    "ThreadedPolicy",
    "TokenGenerator",
    "TokenPolicy",
    "TokenPolicyConfig",
    "Tokenizer",
    "ToolCallingMock",
    "renderer_of",
]
