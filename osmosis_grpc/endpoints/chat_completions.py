"""OpenAI's Chat Completions API: parses requests, and writes replies as a body or as server-sent events."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.results import finish_reason_of, logprobs_of, usage_of
from osmosis_grpc.endpoints.model_request import ModelRequest, objects, passed, refuse, typed, with_system_role
from osmosis_grpc.endpoints.sent_events import event
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument

_OWN = frozenset({"messages", "model", "stream", "stream_options", "tools", "n"})
"""The keys of a body that this module handles."""
MAX_CHOICES = 64
"""The largest `n`, the number of replies to one request."""


def read(body: Any) -> ModelRequest:
    """Parse the body of a request. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    messages = typed(body.get("messages"), list, "messages")
    for path, message in objects(messages, "messages"):
        _check(message, path)
    refuse(body, ("functions", "function_call"), "send `tools` and `tool_choice`")
    refuse(body, ("top_logprobs",), "the policy's reply has the logprobs of its own tokens only")
    choices = body.get("n") or 1
    if type(choices) is not int or not 1 <= choices <= MAX_CHOICES:
        raise InvalidArgument("n", f"is not a whole number from 1 to {MAX_CHOICES}")
    options = body.get("stream_options") or {}
    params, ignored = passed(body, _OWN)
    return ModelRequest(
        messages=with_system_role(messages),
        params=params,
        ignored=tuple(ignored),
        tools=body.get("tools"),
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        stream_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        choices=choices,
    )


def write(request: ModelRequest, *results: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply, with a choice for each result."""
    choices = [
        {"index": index, "message": _message(result), "finish_reason": finish_reason_of(result), "logprobs": logprobs}
        for index, result in enumerate(results)
        for logprobs in [logprobs_of(result) if request.params.get("logprobs") else None]
    ]
    usage = _usage(results)
    return _head(request, "chat.completion") | {"choices": choices} | ({"usage": usage} if usage else {})


def stream(request: ModelRequest, *results: CompletionsResult) -> Iterator[str]:
    """Yield the choices of a reply as server-sent events."""
    head = _head(request, "chat.completion.chunk")
    for index, result in enumerate(results):
        yield from _streamed(request, head, index, result)
    usage = _usage(results)
    if request.stream_usage and usage:
        yield event(head | {"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _streamed(request: ModelRequest, head: dict[str, Any], number: int, result: CompletionsResult) -> Iterator[str]:
    message = _message(result)

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return event(head | {"choices": [choice]})

    yield chunk({"role": "assistant", "content": None if message.get("tool_calls") else ""})
    for name, value in message.items():
        if name not in ("role", "tool_calls") and value is not None:
            yield chunk({name: value})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index} | call]})
    logprobs = logprobs_of(result) if request.params.get("logprobs") else None
    yield chunk({}, finish_reason_of(result), logprobs)


def _usage(results: Sequence[CompletionsResult]) -> dict[str, Any]:
    """Return how many tokens the prompt and all replies have, or {} if the policy does not report it."""
    usage = usage_of(results[0]) if results[0].usage else {}
    for other in results[1:]:
        more = usage_of(other).get("completion_tokens", 0) if other.usage else 0
        for key in ("completion_tokens", "total_tokens"):
            if key in usage:
                usage[key] += more
    return usage


def too_long(error: ContextLengthExceeded) -> str:
    """Return the error message for a prompt that exceeds the context."""
    if not error.limit:
        return str(error)
    said = f"This model's maximum context length is {error.limit} tokens."
    return f"{said} However, your messages resulted in {error.tokens} tokens."


def error(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def stream_error(status: int, message: str, code: str) -> str:
    """Return the event of an error in a stream that has already begun."""
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
    """Return the message of a reply. Copy vLLM's `reasoning` to `reasoning_content`, which more clients read."""
    message = result.message
    if message.get("reasoning") and not message.get("reasoning_content"):
        return {**message, "reasoning_content": message["reasoning"]}
    return message


def _head(request: ModelRequest, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request.reply_id}", "object": kind, "created": int(time.time()), "model": request.model}
