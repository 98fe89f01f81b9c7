"""OpenAI's Chat Completions: reads a request, and writes a reply as a body or as server-sent events."""

import time
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.results import finish_reason_of, logprobs_of, usage_of
from osmosis_grpc.endpoints.model_request import ModelRequest, folded, objects, passed, refuse, typed
from osmosis_grpc.endpoints.sent_events import event
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument

_OWN = frozenset({"messages", "model", "stream", "stream_options", "tools", "n"})
"""Keys of a body that are read here."""


def read(body: Any) -> ModelRequest:
    """Return the request in a body. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    messages = typed(body.get("messages"), list, "messages")
    for path, message in objects(messages, "messages"):
        _check(message, path)
    refuse(body, ("functions", "function_call"), "send `tools` and `tool_choice`")
    refuse(body, ("top_logprobs",), "the policy's reply has the logprobs of its own tokens only")
    if body.get("n") not in (None, 1):
        raise InvalidArgument("n", "is not 1: a chat has one reply; ask again for another one")
    options = body.get("stream_options") or {}
    params, ignored = passed(body, _OWN)
    return ModelRequest(
        messages=folded(messages),
        params=params,
        ignored=tuple(ignored),
        tools=body.get("tools"),
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        stream_usage=bool(isinstance(options, dict) and options.get("include_usage")),
    )


def write(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply."""
    logprobs = logprobs_of(result) if request.params.get("logprobs") else None
    choice = {"index": 0, "message": _message(result), "finish_reason": finish_reason_of(result), "logprobs": logprobs}
    body = _head(request, "chat.completion") | {"choices": [choice]}
    return body | {"usage": usage_of(result)} if result.usage else body


def stream(request: ModelRequest, result: CompletionsResult) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    head = _head(request, "chat.completion.chunk")
    message = _message(result)

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return event(head | {"choices": [choice]})

    yield chunk({"role": "assistant", "content": None if message.get("tool_calls") else ""})
    for name, value in message.items():
        if name not in ("role", "tool_calls") and value is not None:
            yield chunk({name: value})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index} | call]})
    logprobs = logprobs_of(result) if request.params.get("logprobs") else None
    yield chunk({}, finish_reason_of(result), logprobs)
    if request.stream_usage and result.usage:
        yield event(head | {"choices": [], "usage": usage_of(result)})
    yield "data: [DONE]\n\n"


def too_long(error: ContextLengthExceeded) -> str:
    """Return what a client reads when its prompt does not fit into the context."""
    if not error.limit:
        return str(error)
    said = f"This model's maximum context length is {error.limit} tokens."
    return f"{said} However, your messages resulted in {error.tokens} tokens."


def error(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def stream_error(status: int, message: str, code: str) -> str:
    """Return the event of an error after the beginning of a stream."""
    return event(error(status, message, code))


def _check(message: dict[str, Any], path: str) -> None:
    content = message.get("content")
    if isinstance(content, list):
        for at, part in objects(content, f"{path}.content"):
            kind = part.get("type")
            if kind == "text":
                typed(part.get("text"), str, f"{at}.text")
            elif kind == "image_url":
                typed(typed(part.get("image_url"), dict, f"{at}.image_url").get("url"), str, f"{at}.image_url.url")
    elif content is not None:
        typed(content, str, f"{path}.content")
    for at, call in objects(message.get("tool_calls") or [], f"{path}.tool_calls"):
        if call.get("type", "function") == "function":
            function = typed(call.get("function"), dict, f"{at}.function")
            typed(function.get("name"), str, f"{at}.function.name")
            typed(function.get("arguments"), str, f"{at}.function.arguments")


def _message(result: CompletionsResult) -> dict[str, Any]:
    """Return the message of a reply, with vLLM's `reasoning` also as `reasoning_content`, which more clients read."""
    message = result.message
    if message.get("reasoning") and not message.get("reasoning_content"):
        return {**message, "reasoning_content": message["reasoning"]}
    return message


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.reply_id}", "object": kind, "created": int(time.time()), "model": request.model}
