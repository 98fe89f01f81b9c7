"""Gemini's generateContent API: converts requests to histories in OpenAI's format, and replies to parts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.message_keys import arguments_object
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

METHODS = {"generateContent": False, "streamGenerateContent": True}
"""The methods that ask a model for a reply, and whether they stream it."""
COUNT = "countTokens"

_OWN = frozenset(
    {"contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config", "generationConfig"}
    | {"generation_config", "cachedContent", "model"}
)
_PARAMS = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
"""Maps Gemini's parameters to OpenAI's names."""
_GENERATION_OWN = frozenset({*_PARAMS, "candidateCount", "responseMimeType", "responseSchema", "responseJsonSchema"})
_MODES = {"ANY": "required", "NONE": "none"}
_FINISH_REASONS = {"content_filter": "SAFETY", **dict.fromkeys(CUTS, "MAX_TOKENS")}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    410: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def read(body: Any) -> ModelRequest:
    """Parse the body of a request. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    refuse(body, ("cachedContent",), "send the whole history as `contents`")
    _, ignored = passed(body, _OWN)
    messages: list[Message] = []
    system = body.get("systemInstruction") or body.get("system_instruction")
    if isinstance(system, Mapping):
        system = system.get("parts")
    if system:
        messages.append({"role": "system", "content": _system_text(system)})
    calls: list[tuple[str, str]] = []
    for path, content in objects(body.get("contents"), "contents"):
        messages += _messages(content, path, ignored, calls)
    config = typed(body.get("generationConfig") or body.get("generation_config") or {}, dict, "generationConfig")
    ignored += [f"generationConfig.{name}" for name in config if name not in _GENERATION_OWN]
    choice = typed(body.get("toolConfig") or body.get("tool_config") or {}, dict, "toolConfig")
    tools = [tool for at, each in objects(body.get("tools") or [], "tools") for tool in _tools(each, at, ignored)]
    return ModelRequest(
        messages=with_system_role(messages),
        params=_params(config) | _tool_choice(choice),
        tools=tools or None,
        ignored=tuple(ignored),
    )


def read_count(body: Any) -> ModelRequest:
    """Parse the body of a request for countTokens. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    return read(body.get("generateContentRequest") or body)


def of_call(request: ModelRequest, model: str, method: str) -> ModelRequest:
    """Add the model and the method of the URL to a request."""
    return replace(request, model=model, stream=METHODS[method])


def write(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply."""
    reason = _FINISH_REASONS.get(result.finish_reason or "", "STOP")
    content = {"role": "model", "parts": list(_parts(result.message))}
    prompt, reply = result.usage.get("prompt_tokens", 0), result.usage.get("completion_tokens", 0)
    return {
        "candidates": [{"index": 0, "content": content, "finishReason": reason}],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": reply,
            "totalTokenCount": prompt + reply,
            "cachedContentTokenCount": cached_tokens(result.usage),
        },
        "modelVersion": request.model,
        "responseId": request.reply_id,
    }


def stream(request: ModelRequest, result: CompletionsResult) -> Iterator[str]:
    """Yield the reply as one server-sent event."""
    yield event(write(request, result))


def count(tokens: int) -> dict[str, Any]:
    """Return the body of a response to a token count."""
    return {"totalTokens": tokens}


def too_long(error: ContextLengthExceeded) -> str:
    """Return the error message for a prompt that exceeds the context."""
    if not error.limit:
        return str(error)
    return f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed ({error.limit})."


def error(status: int, message: str, code: str) -> dict[str, Any]:
    """Return the body of an error."""
    name = _STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name, "details": [{"reason": code.upper()}]}}


def stream_error(status: int, message: str, code: str) -> str:
    """Return the event of an error in a stream that has already begun."""
    return event(error(status, message, code))


# The request.


def _system_text(system: Any) -> str:
    if isinstance(system, str):
        return system
    parts = objects(system if isinstance(system, list) else [system], "systemInstruction.parts")
    return "\n\n".join(typed(part.get("text") or "", str, f"{at}.text") for at, part in parts)


def _messages(
    content: Mapping[str, Any], path: str, ignored: list[str], open_calls: list[tuple[str, str]]
) -> Iterator[Message]:
    """Convert a content to OpenAI's format: yield one message for each tool result, and then one for the rest.

    Older clients leave out the ids of calls. A result without an id belongs to the first call with its name in
    `open_calls`, which has the names and ids of the calls that have no result yet.
    """
    role = "assistant" if content.get("role") == "model" else "user"
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning = ""
    results = False
    for at, part in objects(content.get("parts") or [], f"{path}.parts"):
        if call := part.get("functionCall"):
            call = typed(call, dict, f"{at}.functionCall")
            function = {
                "name": typed(call.get("name"), str, f"{at}.functionCall.name"),
                "arguments": json.dumps(call.get("args") or {}, ensure_ascii=False),
            }
            call_id = call.get("id") or f"call {at}"
            open_calls.append((function["name"], call_id))
            calls.append({"id": call_id, "type": "function", "function": function})
        elif result := part.get("functionResponse"):
            result = typed(result, dict, f"{at}.functionResponse")
            named = next((call_id for name, call_id in open_calls if name == result.get("name")), f"call {at}")
            call_id = result.get("id") or named
            open_calls[:] = [each for each in open_calls if each[1] != call_id]
            yield {"role": "tool", "tool_call_id": call_id, "content": _result(result.get("response"))}
            results = True
        elif part.get("thought"):
            reasoning += str(part.get("text") or "")
        elif "text" in part:
            if part["text"]:
                parts.append({"type": "text", "text": typed(part["text"], str, f"{at}.text")})
        else:
            parts.append(_media(part, at, ignored))
    if results and not (parts or calls or reasoning):
        return
    plain = "".join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts
    made: Message = {"role": role, "content": plain or (None if calls else "")}
    if reasoning:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = calls
    yield made


def _media(part: Mapping[str, Any], path: str, ignored: list[str]) -> dict[str, Any]:
    data = part.get("inlineData")
    if isinstance(data, Mapping) and str(data.get("mimeType")).startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{data['mimeType']};base64,{data.get('data')}"}}
    if not isinstance(data, Mapping) and "fileData" not in part:
        raise InvalidArgument(path, "has no text, functionCall, functionResponse or inlineData")
    media = (data or part["fileData"]).get("mimeType")
    ignored.append(f"{path}: {media}")
    return {"type": "text", "text": f"[a file of type {media}, which cannot be shown]"}


def _result(response: Any) -> str:
    if isinstance(response, Mapping) and len(response) == 1:
        (value,) = response.values()
        if isinstance(value, str):
            return value if "error" not in response else f"Error: {value}"
    return json.dumps(response, ensure_ascii=False)


def _tools(tool: Mapping[str, Any], path: str, ignored: list[str]) -> Iterator[dict[str, Any]]:
    declared = tool.get("functionDeclarations") or tool.get("function_declarations") or []
    for at, function in objects(declared, f"{path}.functionDeclarations"):
        schema = function.get("parametersJsonSchema") or _schema(function.get("parameters"))
        made = {"name": typed(function.get("name"), str, f"{at}.name"), "description": function.get("description")}
        parameters = schema or {"type": "object", "properties": {}}
        known = {name: value for name, value in made.items() if value is not None}
        yield {"type": "function", "function": known | {"parameters": parameters}}
    ignored += [f"{path}: {name}" for name in tool if name not in ("functionDeclarations", "function_declarations")]


def _schema(schema: Any) -> Any:
    """Convert a schema to JSON Schema. Gemini writes types in capitals."""
    if isinstance(schema, list):
        return [_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {name: _schema(value) for name, value in schema.items()}
    if isinstance(made.get("type"), str):
        made["type"] = made["type"].lower()
    return made


def _params(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("candidateCount") not in (None, 1):
        raise InvalidArgument("generationConfig.candidateCount", "is not 1: a chat has one reply")
    params = {_PARAMS[name]: value for name, value in config.items() if name in _PARAMS and value is not None}
    if config.get("responseMimeType") == "application/json":
        schema = config.get("responseJsonSchema") or _schema(config.get("responseSchema"))
        params["response_format"] = (
            {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
            if schema
            else {"type": "json_object"}
        )
    return params


def _tool_choice(config: Mapping[str, Any]) -> dict[str, Any]:
    calling = config.get("functionCallingConfig") or {}
    names = calling.get("allowedFunctionNames") or []
    mode = _MODES.get(str(calling.get("mode")))
    if mode == "required" and len(names) == 1:
        return {"tool_choice": {"type": "function", "function": {"name": names[0]}}}
    return {"tool_choice": mode} if mode else {}


# The reply.


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    if reasoning := reasoning_of(message):
        yield {"text": reasoning, "thought": True}
    content = message.get("content")
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
        if isinstance(part, dict) and part.get("type") == "text" and part.get("text"):
            yield {"text": part["text"]}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = arguments_object(function.get("arguments"))
        yield {"functionCall": {"id": call.get("id"), "name": function.get("name"), "args": arguments}}
