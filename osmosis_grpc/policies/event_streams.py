"""Reads a reply from server-sent events: chunks of OpenAI's Chat Completions, heartbeats, and errors."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext

_DONE = "[DONE]"
_FINISHED = re.compile(r'"finish_reason"\s*:\s*"')
_LISTS = ("token_ids", "logprobs")
"""Keys of chunks and choices whose lists are concatenated."""
_PROMPT = "prompt_token_ids"
"""The key of the prompt's ids, which vLLM repeats for each choice."""


def is_stream(raw: bytes) -> bool:
    """Return whether an answer is a stream, and not the JSON object of a server that does not stream."""
    return raw.lstrip()[:1] != b"{"


def stream_problem(raw: bytes) -> str:
    """Return why a stream is incomplete, so that a retry may help; an empty string if it is complete."""
    finished = False
    for kind, data in _events(raw):
        if kind == "error" or data.startswith('{"error"'):
            return f"has an error: {_message(data)}"
        if data == _DONE or _FINISHED.search(data):
            finished = True
    return "" if finished else "ended before the end of the reply"


def read_stream(raw: bytes) -> dict[str, Any]:
    """Join a stream to the reply that would have come without streaming.

    Raises KeyError, TypeError, ValueError, AttributeError or InvalidArgument if the stream is malformed.
    """
    body: dict[str, Any] = {}
    choices: dict[int, _Choice] = {}
    for chunk in _chunks(raw):
        for part in chunk.pop("choices", None) or ():
            choices.setdefault(part.get("index", 0), _Choice()).add(part)
        _extend(body, chunk)
    if not choices:
        raise ValueError("it has no message")
    return body | {"choices": [choices[index].whole(index) for index in sorted(choices)]}


class _Choice:
    """Collects the parts of one choice."""

    def __init__(self) -> None:
        self._rest: dict[str, Any] = {"finish_reason": None}
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a part, and append its texts to those of the message."""
        rest = dict(part)
        deltas = rest.pop("delta", None), rest.pop("message", None)
        for name, value in (deltas[0] or deltas[1] or {}).items():
            if name == "tool_calls":
                self._add_calls(value or ())
            else:
                _append(self._message, {name: value}, () if name == "role" else (name,))
        logprobs = rest.get("logprobs")
        if isinstance(logprobs, dict):
            _extend(self._rest.setdefault("logprobs", {}), {name: value or None for name, value in logprobs.items()})
            del rest["logprobs"]
        _extend(self._rest, {name: value for name, value in rest.items() if value != ""})

    def _add_calls(self, parts: Any) -> None:
        for position, part in enumerate(parts):
            call = self._calls.setdefault(part.get("index", position), {"type": "function", "function": {}})
            _append(call["function"], part.get("function") or {}, ("arguments",))
            _append(call, {key: part[key] for key in part.keys() - {"index", "function"}}, ())

    def whole(self, index: int) -> dict[str, Any]:
        """Return the collected choice. Raises ValueError if it has no message."""
        if self._calls:
            self._message["tool_calls"] = [self._calls[number] for number in sorted(self._calls)]
        if not self._message:
            raise ValueError("it has no message")
        self._message.setdefault("content", None)
        return {**self._rest, "index": index, "message": self._message}


def _append(into: dict[str, Any], parts: Mapping[str, Any], texts: tuple[str, ...]) -> None:
    for name, value in parts.items():
        if name in texts and isinstance(value, str):
            into[name] = (into.get(name) or "") + value
        elif value is not None:
            into[name] = value


def _extend(into: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Merge `parts` into a mapping: extend the lists of _LISTS, replace other values, and skip None.

    Raises ValueError if the ids of the prompt change.
    """
    for name, value in parts.items():
        if name == _PROMPT and value is not None and into.get(name, value) != value:
            raise ValueError(f"its {name} differ from those in earlier events")
        if value is not None:
            follows = name in (*_LISTS, "content", "refusal") and isinstance(value, list)
            into[name] = [*(into.get(name) or ()), *value] if follows else value


def _chunks(raw: bytes) -> Iterator[dict[str, Any]]:
    for _, data in _events(raw):
        if data == _DONE:
            return
        chunk = jsontext.parse_reply(data, "chunk")
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is not a JSON object")
        yield chunk


def _events(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the data of each event. Skip comments, such as heartbeats."""
    kind, data = "message", list[str]()
    # Split bytes, because str.splitlines() would also split at U+2028 and others, which JSON may contain.
    for line in (part.decode(errors="replace") for part in (*raw.splitlines(), b"")):
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
    try:
        found: Any = jsontext.parse_object(data, "error")
    except InvalidArgument:
        return data
    inner = found.get("error", found)
    text = inner.get("message") or inner.get("detail") if isinstance(inner, dict) else inner
    return str(text or data)
