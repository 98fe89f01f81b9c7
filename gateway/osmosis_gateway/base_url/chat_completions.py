"""OpenAI's Chat Completions: reads a request, and writes a reply as a body or as server-sent events."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from osmosis_gateway.base_url.requests import ModelRequest, typed
from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.errors import InvalidArgument

_OWN = frozenset({"messages", "model", "stream", "stream_options", "tools", "n", "store", "user", "metadata"})
"""Keys of a body that are no sampling parameters."""


def read(body: Any) -> ModelRequest:
    """Return the request in a body. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    messages = typed(body.get("messages"), list, "messages")
    for index, message in enumerate(messages):
        typed(message, dict, f"messages[{index}]")
    if body.get("n") not in (None, 1):
        raise InvalidArgument("n", "is not 1: a chat has one reply; ask again for another one")
    options = body.get("stream_options") or {}
    return ModelRequest(
        messages=messages,
        params={name: value for name, value in body.items() if name not in _OWN and value is not None},
        tools=body.get("tools"),
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        stream_usage=bool(isinstance(options, dict) and options.get("include_usage")),
    )


def write(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply."""
    choice = {"index": 0, "message": result.message, "finish_reason": result.finish_reason or "stop", "logprobs": None}
    body = _head(request, "chat.completion") | {"choices": [choice]}
    return body | {"usage": _usage(result)} if result.usage else body


def stream(request: ModelRequest, result: CompletionsResult) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    head = _head(request, "chat.completion.chunk")
    message = result.message

    def event(delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return f"data: {json.dumps(head | {'choices': [choice]}, ensure_ascii=False)}\n\n"

    yield event({"role": "assistant", "content": None if message.get("tool_calls") else ""})
    for name, value in message.items():
        if name not in ("role", "tool_calls") and value is not None:
            yield event({name: value})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield event({"tool_calls": [{"index": index} | call]})
    yield event({}, result.finish_reason or "stop")
    if request.stream_usage and result.usage:
        yield f"data: {json.dumps(head | {'choices': [], 'usage': _usage(result)})}\n\n"
    yield "data: [DONE]\n\n"


def error(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": request.model}


def _usage(result: CompletionsResult) -> dict[str, Any]:
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} | dict(result.usage)
