"""Reads a model's reply from server-sent events: chunks of OpenAI's Chat Completions, heartbeats, and errors."""

import re
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.errors import InvalidArgument, OsmosisServerError, ReplyUnreadable
from osmosis_grpc.types import jsontext

_DONE = "[DONE]"
_FINISHED = re.compile(r'"finish_reason"\s*:\s*"')
_LISTS = ("token_ids", "logprobs", "prompt_token_ids")
"""Keys of a chunk whose lists follow each other."""


def error_of(raw: bytes) -> OsmosisServerError | None:
    """Return the error of an answer that is a stream without a whole reply. Return None for every other answer.

    Such an answer is worth another try.
    """
    if raw.lstrip()[:1] == b"{":
        return None
    finished = False
    for kind, data in _events(raw):
        if kind == "error":
            return OsmosisServerError(f"the trainer's stream has an error: {_message(data)}")
        if data == _DONE or _FINISHED.search(data):
            finished = True
        if data.startswith('{"error"'):
            return OsmosisServerError(f"the trainer's stream has an error: {_message(data)}")
    return None if finished else OsmosisServerError("the trainer's stream ended before the end of the reply")


def read_stream(raw: bytes) -> dict[str, Any]:
    """Return the reply of a stream in the form of a reply that is not streamed. Raises ReplyUnreadable.

    An answer that is no stream is returned as it is.
    """
    try:
        if raw.lstrip()[:1] == b"{":
            whole: dict[str, Any] = jsontext.parse_object(raw.decode(), "body")
            return whole
        body: dict[str, Any] = {}
        message: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        finish_reason = None
        for chunk in _chunks(raw):
            choice: dict[str, Any] = next(iter(chunk.pop("choices", None) or ()), {})
            for name, value in chunk.items():
                if value is not None:
                    body[name] = [*body.get(name, ()), *value] if name in _LISTS else value
            finish_reason = choice.get("finish_reason") or finish_reason
            _merge(message, calls, choice.get("delta") or choice.get("message") or {})
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        if not message:
            raise ValueError("it has no message")
        message.setdefault("content", None)
        return body | {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}
    except (KeyError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's stream cannot be read: {type(error).__name__}: {error}") from None


def _merge(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    """Add the parts of a chunk to a message and its tool calls. Texts are appended."""
    for name, value in delta.items():
        if name == "tool_calls":
            for position, part in enumerate(value or ()):
                call = calls.setdefault(part.get("index", position), {"type": "function", "function": {}})
                _append(call["function"], part.get("function") or {}, ("arguments",))
                _append(call, {key: part[key] for key in part.keys() - {"index", "function"}}, ())
        else:
            _append(message, {name: value}, () if name == "role" else (name,))


def _append(into: dict[str, Any], parts: dict[str, Any], texts: tuple[str, ...]) -> None:
    for name, value in parts.items():
        if name in texts and isinstance(value, str):
            into[name] = (into.get(name) or "") + value
        elif value is not None:
            into[name] = value


def _chunks(raw: bytes) -> Iterator[dict[str, Any]]:
    for _, data in _events(raw):
        if data == _DONE:
            return
        yield jsontext.parse_object(data, "chunk")


def _events(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the data of each event. Comments, such as heartbeats, are left out."""
    kind, data = "message", list[str]()
    for line in [*raw.decode(errors="replace").splitlines(), ""]:
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                kind = value
            elif name == "data":
                data.append(value)


def _message(data: str) -> str:
    """Return the text in the data of an error."""
    try:
        found: Any = jsontext.parse_object(data, "error")
    except InvalidArgument:
        return data
    inner = found.get("error", found)
    text = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(text or data)
