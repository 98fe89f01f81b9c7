"""LLM functions answer chats without a trainer: any function from messages to a text, a message or a response."""

from collections.abc import Callable
from typing import Any

from osmosis_grpc.policies import Policy
from osmosis_grpc.policies.threads import is_async
from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.types import ChatRequest, ChatResponse
from osmosis_grpc.types.tool_dicts import dump_model

LLMFunction = Callable[..., Any]
"""Called as f(messages, max_tokens=..., temperature=..., **more); `tools` is among `more` if the chat offers tools.

It returns a text, an assistant message as a dict, a response in OpenAI's format, or an object with such attributes."""


def policy_of(function: LLMFunction) -> Policy:
    """Return the policy that asks an LLM function. A sync function runs on threads."""
    threads = None if is_async(function) else DaemonThreads(64, name="LLM functions")

    async def policy(request: ChatRequest, /) -> ChatResponse:
        more: dict[str, Any] = dict(request.params)
        if request.tools:
            more["tools"] = [dict(tool) for tool in request.tools]
        messages = [dict(message) for message in request.messages]
        if threads is None:
            return response_of(await function(messages, **more))
        result = await threads.run(lambda: function(messages, **more))
        return response_of(await result if hasattr(result, "__await__") else result)

    return policy


def response_of(result: Any) -> ChatResponse:
    """Return the reply that an LLM function returned. Raises TypeError for a value that is no reply."""
    if isinstance(result, ChatResponse):
        return result
    if isinstance(result, str):
        return ChatResponse(message={"role": "assistant", "content": result})
    values = result if isinstance(result, dict) else dump_model(result)
    if not isinstance(values, dict):
        raise TypeError(f"the LLM function returned a {type(result).__name__}, not a text, a message or a response")
    choice = (values.get("choices") or [{}])[0]
    message = choice.get("message") or ({"content": values["text"]} if "text" in values else values)
    return ChatResponse(
        message={"role": "assistant", **message},
        finish_reason=choice.get("finish_reason") or "stop",
        usage=values.get("usage") or None,
    )
