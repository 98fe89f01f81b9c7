"""Anthropic's Messages API: converts requests to histories in OpenAI's format, and replies to content blocks."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.message_keys import arguments_object
from osmosis_grpc.endpoints.anthropic_tools import function_of
from osmosis_grpc.endpoints.model_request import (
    ModelRequest,
    cached_tokens,
    objects,
    passed,
    reasoning_of,
    refuse,
    typed,
    with_system_role,
)
from osmosis_grpc.endpoints.sent_events import event
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.samples import CUTS

_OWN = frozenset(
    {"messages", "system", "model", "stream", "tools", "tool_choice", "stop_sequences", "output_config"}
    | {"mcp_servers", "container"}
)
"""The keys of a body that this module handles or refuses."""
_BILLING = "x-anthropic-billing-header"
"""The beginning of a system text that changes with each request. Such a text is dropped; it is not for the model."""
_SIGNATURE = "b3Ntb3Npcw=="
"""A placeholder for the signature of thinking. Without it, some clients send thinking back as text of the user."""
_STOP_REASONS = {"tool_calls": "tool_use", "content_filter": "refusal", **dict.fromkeys(CUTS, "max_tokens")}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read(body: Any) -> ModelRequest:
    """Parse the body of a request. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    refuse(body, ("mcp_servers", "container"), "it needs Anthropic's servers")
    params, ignored = passed(body, _OWN)
    messages: list[Message] = []
    system = _text(_without_billing(body.get("system")), "system") if body.get("system") else ""
    if system:
        messages.append({"role": "system", "content": system})
    for path, message in objects(body.get("messages"), "messages"):
        messages += _messages(message, path, ignored)
    if messages and messages[-1].get("role") == "assistant":
        problem = "ends with an assistant message, and the policy writes whole replies; end with a user message"
        raise InvalidArgument("messages", problem)
    params |= _output_config(typed(body.get("output_config") or {}, dict, "output_config"))
    if body.get("stop_sequences"):
        params["stop"] = body["stop_sequences"]
    if body.get("tool_choice"):
        params |= _tool_choice(typed(body["tool_choice"], dict, "tool_choice"))
    tools: list[dict[str, Any]] = []
    for path, tool in objects(body.get("tools") or [], "tools"):
        function = function_of(tool)
        if function is None:
            ignored.append(f"{path}: {tool.get('type')}")
        else:
            tools.append(function)
    return ModelRequest(
        messages=with_system_role(messages),
        params=params,
        tools=None if body.get("tools") is None else tools,
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        ignored=tuple(ignored),
    )


def write(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply."""
    return _message(request, result) | {
        "content": list(_blocks(result.message)),
        **_stop(request, result),
        "usage": _usage(result),
    }


def stream(request: ModelRequest, result: CompletionsResult) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    usage = _usage(result)
    yield _event("message_start", message=_message(request, result) | {"usage": usage | {"output_tokens": 0}})
    for index, block in enumerate(_blocks(result.message)):
        empty, deltas = _STREAMED[block["type"]](block)
        yield _event("content_block_start", index=index, content_block=block | empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = _stop(request, result)
    yield _event("message_delta", delta=delta, usage={"output_tokens": usage["output_tokens"]})
    yield _event("message_stop")


def count(tokens: int) -> dict[str, Any]:
    """Return the body of a response to a token count."""
    return {"input_tokens": tokens}


def too_long(error: ContextLengthExceeded) -> str:
    """Return the error message for a prompt that exceeds the context."""
    return f"prompt is too long: {f'{error.tokens} tokens > {error.limit} maximum' if error.limit else error}"


def error(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, "code": code}}


def stream_error(status: int, message: str, code: str) -> str:
    """Return the event of an error in a stream that has already begun."""
    return _event("error", error=error(status, message, code)["error"])


# The request.


def _without_billing(system: Any) -> Any:
    if not isinstance(system, list):
        return system
    return [part for part in system if not (isinstance(part, dict) and str(part.get("text")).startswith(_BILLING))]


def _messages(message: Mapping[str, Any], path: str, ignored: list[str]) -> Iterator[Message]:
    """Convert a message to OpenAI's format: yield one message for each tool result, and then one for the rest.

    Add the paths of parts that the policy cannot read to `ignored`.
    """
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidArgument(f"{path}.role", f"{role!r} is not user, assistant or system")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    results = False
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning = ""
    for at, block in objects(content, f"{path}.content"):
        kind = block.get("type")
        if kind == "tool_result":
            result = _text(block.get("content") or "", f"{at}.content", ignored)
            call_id = typed(block.get("tool_use_id"), str, f"{at}.tool_use_id")
            yield {
                "role": "tool",
                "tool_call_id": call_id,
                "content": _marked(result) if block.get("is_error") else result,
            }
            results = True
        elif kind == "tool_use":
            given = typed(block.get("input") or {}, dict, f"{at}.input")
            name, call_id = typed(block.get("name"), str, f"{at}.name"), typed(block.get("id"), str, f"{at}.id")
            function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
            calls.append({"id": call_id, "type": "function", "function": function})
        elif kind == "thinking":
            reasoning += str(block.get("thinking") or "")
        elif kind != "redacted_thinking":
            parts += _part(block, at, ignored)
    if results and not (parts or calls or reasoning):
        return
    made: Message = {"role": role, "content": _plain(parts) if parts else None if role == "assistant" else ""}
    if reasoning:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = calls
    yield made


def _part(block: Mapping[str, Any], path: str, ignored: list[str]) -> list[dict[str, Any]]:
    """Convert a block to parts of OpenAI's format. Blocks other than texts and images become a text with their type."""
    kind = block.get("type")
    if kind == "text":
        return [_text_part(typed(block.get("text"), str, f"{path}.text"))]
    source = block.get("source")
    if kind == "image":
        url = _image_url(typed(source, dict, f"{path}.source"), f"{path}.source")
        return [{"type": "image_url", "image_url": {"url": url}}]
    title = "\n".join(str(block[name]) for name in ("title", "context") if block.get(name))
    head = [_text_part(title)] if title else []
    if kind == "search_result":
        content = [
            each for at, part in objects(block.get("content"), f"{path}.content") for each in _part(part, at, ignored)
        ]
        return [*head, _text_part(str(source or "")), *content]
    if kind == "document":
        source = typed(source, dict, f"{path}.source")
        if source.get("type") == "text":
            return [*head, _text_part(typed(source.get("data"), str, f"{path}.source.data"))]
        if source.get("type") == "content":
            content = _text(source.get("content") or "", f"{path}.source.content", ignored)
            return [*head, *(content if isinstance(content, list) else [_text_part(content)])]
        ignored.append(f"{path}: {source.get('media_type') or source.get('type')}")
        return [
            *head,
            _text_part(f"[a document of type {source.get('media_type') or 'unknown'}, which cannot be shown]"),
        ]
    if kind == "tool_reference":
        return [_text_part(f"[tool {block.get('tool_name')}]")]
    raise InvalidArgument(
        f"{path}.type", f"{kind!r} is not served here; text, image, document, tool_use, tool_result and thinking are"
    )


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image_url(source: Mapping[str, Any], path: str) -> str:
    if source.get("type") == "url":
        return typed(source.get("url"), str, f"{path}.url")
    if source.get("type") != "base64":
        raise InvalidArgument(f"{path}.type", f"{source.get('type')!r} is not served here; base64 and url are")
    media = typed(source.get("media_type"), str, f"{path}.media_type")
    return f"data:{media};base64,{typed(source.get('data'), str, f'{path}.data')}"


def _marked(result: Any) -> Any:
    """Prefix the result of a failed tool with "Error", because OpenAI's format has no field for failures."""
    if isinstance(result, list):
        return [{"type": "text", "text": "Error:"}, *result]
    return result if result.startswith("Error") else f"Error: {result}"


def _plain(parts: list[dict[str, Any]]) -> Any:
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _text(content: Any, path: str, ignored: list[str] | None = None) -> Any:
    """Convert content blocks to a string or to OpenAI's parts."""
    if isinstance(content, str):
        return content
    unread = [] if ignored is None else ignored
    parts = [part for at, block in objects(content, path) for part in _part(block, at, unread)]
    return _plain(parts) if parts else ""


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    chosen = {"auto": "auto", "any": "required", "none": "none", "tool": named}.get(str(kind))
    if chosen is None:
        raise InvalidArgument("tool_choice.type", f"{kind!r} is not auto, any, tool or none")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chosen} | parallel


def _output_config(config: Mapping[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if config.get("effort") is not None:
        params["reasoning_effort"] = config["effort"]
    if config.get("format") is not None:
        wanted = typed(config["format"], dict, "output_config.format")
        if wanted.get("type") != "json_schema":
            raise InvalidArgument("output_config.format.type", f"{wanted.get('type')!r} is not json_schema")
        schema = typed(wanted.get("schema"), dict, "output_config.format.schema")
        params["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return params


# The reply.


def _message(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    return {
        "id": f"msg_{request.reply_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if reasoning := reasoning_of(message):
        yield {"type": "thinking", "thinking": reasoning, "signature": _SIGNATURE}
    content = message.get("content")
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
        if isinstance(part, dict) and part.get("type") == "text" and part.get("text"):
            yield {"type": "text", "text": part["text"]}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_use",
            "id": call.get("id"),
            "name": function.get("name"),
            "input": arguments_object(function.get("arguments")),
        }


def _stop(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return why the reply ended. If the policy's reply has extra["stop_reason"], this includes the stop sequence."""
    matched, stops = result.extra.get("stop_reason"), request.params.get("stop")
    if result.has_tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(matched, str) and isinstance(stops, list) and matched in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _STOP_REASONS.get(result.finish_reason or "stop", "end_turn"), "stop_sequence": None}


def _usage(result: CompletionsResult) -> dict[str, Any]:
    usage = result.usage
    cached = cached_tokens(usage)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("completion_tokens", 0),
    }


def _event(kind: str, **fields: Any) -> str:
    return event({"type": kind} | fields, kind)


_STREAMED: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "text": lambda block: ({"text": ""}, [{"type": "text_delta", "text": block["text"]}]),
    "thinking": lambda block: (
        {"thinking": ""},
        [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": _SIGNATURE},
        ],
    ),
    "tool_use": lambda block: (
        {"input": {}},
        [{"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}],
    ),
}
"""For each type of block, a function that returns the empty block of the first event, and the deltas that fill it."""
