"""OpenAI's Responses API: converts the items of a request to chat messages, and a reply to items."""

import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.endpoints import chat_completions
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
from osmosis_grpc.endpoints.responses_tools import OUTPUTS, Kinds, call_of_item, functions_of, item_of_call
from osmosis_grpc.endpoints.sent_events import event
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.samples import CUTS

_OWN = frozenset(
    {"input", "instructions", "model", "stream", "stream_options", "tools", "tool_choice", "text", "max_output_tokens"}
    | {"include", "reasoning", "store", "previous_response_id", "background", "conversation", "prompt"}
)
"""The keys of a body that this module handles or refuses."""
_ECHO = ("instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "text", "metadata")
_SKIPPED = frozenset({"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"})
"""Items of tools that run on OpenAI's servers. A policy never calls them."""
_INCOMPLETE = {**dict.fromkeys(CUTS, "max_output_tokens"), "content_filter": "content_filter"}
"""Maps the finish reasons of incomplete replies to their names in this API."""

_EMPTY: dict[str, Any] = {"content": [], "arguments": "", "summary": [], "input": ""}
"""The fields that are empty when an item begins in a stream."""

error = chat_completions.error
too_long = chat_completions.too_long


def read(body: Any) -> ModelRequest:
    """Parse the body of a request. Raises InvalidArgument."""
    body = typed(body, dict, "body")
    refuse(body, ("conversation", "background", "prompt"), "send the whole history as `input`")
    refuse(body, ("top_logprobs",), "the policy's reply has the logprobs of its own tokens only")
    params, ignored = passed(body, _OWN)
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": typed(body["instructions"], str, "instructions")})
    items = body.get("input")
    for path, item in objects([{"role": "user", "content": items}] if isinstance(items, str) else items, "input"):
        _add(messages, item, path, ignored)
    if body.get("max_output_tokens") is not None:
        params["max_tokens"] = body["max_output_tokens"]
    if "message.output_text.logprobs" in typed(body.get("include") or [], list, "include"):
        raise InvalidArgument("include", "message.output_text.logprobs is not served here")
    effort = typed(body.get("reasoning") or {}, dict, "reasoning").get("effort")
    if effort is not None:
        params["reasoning_effort"] = effort
    kinds: Kinds = {}
    tools = functions_of(body["tools"], "tools", kinds, ignored) if body.get("tools") else None
    if body.get("tool_choice"):
        params["tool_choice"] = _tool_choice(body["tool_choice"])
    text = typed(body.get("text") or {}, dict, "text")
    if text.get("verbosity") is not None:
        params["verbosity"] = text["verbosity"]
    if format_ := text.get("format"):
        params["response_format"] = _response_format(typed(format_, dict, "text.format"))
    return ModelRequest(
        messages=with_system_role(messages),
        params=params,
        tools=tools,
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        echo={name: body[name] for name in _ECHO if name in body},
        ignored=tuple(ignored),
        kinds=kinds,
        written=partial(_written, kinds) if kinds else None,
        continues=typed(body.get("previous_response_id") or "", str, "previous_response_id"),
        stored=body.get("store") is not False,
    )


def write(request: ModelRequest, result: CompletionsResult) -> dict[str, Any]:
    """Return the body of a reply."""
    reason = _INCOMPLETE.get(result.finish_reason or "")
    status = "incomplete" if reason else "completed"
    return _response(request, status) | {
        "output": list(_items(request.kinds, result.message, status)),
        "usage": _usage(result),
        "incomplete_details": {"reason": reason} if reason else None,
    }


def stream(request: ModelRequest, result: CompletionsResult) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    number = iter(range(10_000_000))

    def made(kind: str, **fields: Any) -> str:
        return event({"type": kind, "sequence_number": next(number)} | fields, kind)

    begun, done = _response(request, "in_progress"), write(request, result)
    done["created_at"] = begun["created_at"]
    yield made("response.created", response=begun)
    yield made("response.in_progress", response=begun)
    for index, item in enumerate(done["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {name: _EMPTY[name] for name in _EMPTY if name in item}
        yield made("response.output_item.added", output_index=index, item=item | empty | {"status": "in_progress"})
        if item["type"] == "message":
            for at, part in enumerate(item["content"]):
                here = place | {"content_index": at}
                yield made("response.content_part.added", **here, part=part | {"text": ""})
                yield made("response.output_text.delta", **here, delta=part["text"], logprobs=[])
                yield made("response.output_text.done", **here, text=part["text"], logprobs=[])
                yield made("response.content_part.done", **here, part=part)
        elif item["type"] == "function_call":
            yield made("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield made("response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        elif item["type"] == "custom_tool_call":
            yield made("response.custom_tool_call_input.delta", **place, delta=item["input"])
            yield made("response.custom_tool_call_input.done", **place, input=item["input"])
        elif item["type"] == "reasoning":
            for at, part in enumerate(item["summary"]):
                here = place | {"summary_index": at}
                yield made("response.reasoning_summary_part.added", **here, part=part | {"text": ""})
                yield made("response.reasoning_summary_text.delta", **here, delta=part["text"])
                yield made("response.reasoning_summary_text.done", **here, text=part["text"])
                yield made("response.reasoning_summary_part.done", **here, part=part)
        yield made("response.output_item.done", output_index=index, item=item)
    yield made(f"response.{done['status']}", response=done)


def count(tokens: int) -> dict[str, Any]:
    """Return the body of a response to a token count."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def stream_error(status: int, message: str, code: str) -> str:
    """Return the event of an error in a stream that has already begun."""
    begun = _response(ModelRequest(messages=[], params={}), "in_progress")
    failed = begun | {"status": "failed", "error": {"code": code, "message": message}}
    return event({"type": "response.created", "sequence_number": 0, "response": begun}, "response.created") + event(
        {"type": "response.failed", "sequence_number": 1, "response": failed}, "response.failed"
    )


# The request.


def _add(messages: list[Message], item: Mapping[str, Any], path: str, ignored: list[str]) -> None:
    """Add an item of the input to the messages. The items of one reply are merged into one message."""
    kind = str(item.get("type") or "message")
    if kind == "message":
        role = typed(item.get("role"), str, f"{path}.role")
        message: Message = {"role": role, "content": _content(item.get("content"), f"{path}.content", ignored)}
        last = messages[-1] if messages else {}
        if message["role"] == "assistant" and last.get("role") == "assistant" and last.get("content") is None:
            last["content"] = message["content"]
        else:
            messages.append(message)
    elif call := call_of_item(item, path):
        _reply(messages).setdefault("tool_calls", []).append(call)
    elif kind in OUTPUTS:
        output = _content(OUTPUTS[kind](item.get("output")), f"{path}.output", ignored)
        call_id = typed(item.get("call_id") or item.get("id"), str, f"{path}.call_id")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind == "reasoning":
        name = "content" if item.get("content") else "summary"
        parts = objects(item.get(name) or [], f"{path}.{name}")
        texts = [typed(part.get("text"), str, f"{at}.text") for at, part in parts]
        _reply(messages, new=True)["reasoning_content"] = "\n".join(texts)
    elif kind in _SKIPPED:
        ignored.append(f"{path}: {kind}")
    else:
        raise InvalidArgument(f"{path}.type", f"{kind!r} is not served here")


def _reply(messages: list[Message], *, new: bool = False) -> Message:
    """Return the last message if it is a reply. Otherwise, add an empty reply and return it."""
    if new or not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(content: Any, path: str, ignored: list[str]) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part, at, ignored) for at, part in objects(content, path)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Mapping[str, Any], path: str, ignored: list[str]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": typed(part.get("text"), str, f"{path}.text")}
    if kind == "refusal":
        return {"type": "text", "text": typed(part.get("refusal"), str, f"{path}.refusal")}
    if kind == "input_image" and part.get("image_url"):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        url = typed(part["image_url"], str, f"{path}.image_url")
        return {"type": "image_url", "image_url": {"url": url} | detail}
    if kind in ("input_file", "input_audio"):
        ignored.append(f"{path}: {kind}")
        return {"type": "text", "text": f"[a file {part.get('filename') or ''}, which cannot be shown]"}
    raise InvalidArgument(f"{path}.type", f"{kind!r} is not served here; text and images by URL are")


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        return choice.get("mode") or "auto"
    return {"type": "function", "function": {"name": choice.get("name") or kind}}


def _response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return dict(given)
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


# The reply.


def _written(kinds: Kinds, result: CompletionsResult) -> Message:
    """Return a reply in the form in which a program with tools of these kinds will send it back."""
    messages: list[Message] = []
    for item in _items(kinds, result.message, "completed"):
        _add(messages, item, "output", [])
    return messages[-1]


def _response(request: ModelRequest, status: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    return {
        "id": f"resp_{request.reply_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": request.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
    } | (defaults | request.echo)


def _items(kinds: Mapping[str, tuple[str, ...]], message: Message, status: str) -> Iterator[dict[str, Any]]:
    """Yield the items of a reply. `status` is the status of its text."""
    if reasoning := reasoning_of(message):
        text = {"type": "summary_text", "text": reasoning}
        yield {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": [text], "status": "completed"}
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [p.get("text") for p in content or () if isinstance(p, dict)]
    parts: list[dict[str, Any]] = [
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts if text
    ]
    if parts or not message.get("tool_calls"):
        made = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "status": status}
        yield made | {"content": parts}
    for call in message.get("tool_calls") or ():
        yield {"id": f"fc_{uuid.uuid4().hex}", **item_of_call(call, kinds)}


def _usage(result: CompletionsResult) -> dict[str, Any]:
    prompt, reply = result.usage.get("prompt_tokens", 0), result.usage.get("completion_tokens", 0)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached_tokens(result.usage)},
        "output_tokens": reply,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + reply,
    }
