"""Makes keys of messages: two messages with the same meaning have the same key.

Client libraries and agents rewrite messages: they add keys with null, change null content to "", make text a list of
parts, write arguments with other separators, and leave out the reasoning of replies.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message, jsontext

_TEXT_PARTS = ("text", "input_text", "output_text")
_DIGEST_BYTES = 16
_SHORT = 2000
"""The most characters of a part of a call whose text is kept."""
_KEYED = frozenset(("role", "content", "tool_calls", "tool_call_id", "name"))
_REASONING = "reasoning_content"
_REASONINGS = frozenset((_REASONING, "reasoning"))
"""Two names for the same thing."""


class History(NamedTuple):
    """The messages of a request with their keys."""

    messages: Sequence[Message]
    keys: list[bytes]
    sizes: list[int]
    """The approximate bytes of each message."""
    digest: bytes
    """Equal for histories with the same meaning."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "History":
        """Return a history. This is slow for a long history, and may be called on any thread."""
        made = [message_key(message) for message in messages]
        keys = [key for key, _ in made]
        return cls(messages, keys, [size for _, size in made], _digest(b"".join(keys)))


def message_key(message: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return the key of a message, and the approximate bytes of the message."""
    role, content, calls = message.get("role"), _content(message.get("content")), message.get("tool_calls")
    about = message.get("tool_call_id") if role == "tool" else message.get("name")
    if type(content) is str and isinstance(role, str) and isinstance(about, str | None):
        about = about or ""
        text = f"{len(role)} {len(about)} {len(content)} {role}{about}{content}{''.join(map(_call_text, calls or ()))}"
    else:
        text = jsontext.canonical([role, content, [_call(call) for call in calls or ()], about])
    raw = text.encode()
    return _digest(raw), len(raw)


def same_meaning(known: Message, message: Message) -> bool:
    """Return whether a message has the meaning of a known one.

    An assistant message may lack what the known one has besides its text and its calls, such as its reasoning. If it
    has more than the known one, it is a different message.
    """
    try:
        text, other_text = known.get("content"), message.get("content")
        if type(text) is str and type(other_text) is str and text != other_text:
            return False  # computing keys would take a hundred times as long for this usual case
        if known.get("role") != message.get("role") or message_key(known)[0] != message_key(message)[0]:
            return False
        one, other = _besides(known), _besides(message)
        if message.get("role") == "assistant":
            one = {name: value for name, value in one.items() if name in other}
        return jsontext.canonical(one) == jsontext.canonical(other)
    except Exception:  # a value that is not JSON
        return False


def _besides(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in message.items():
        if name not in _KEYED and value is not None and value != "" and value != [] and value != {}:
            found[_REASONING if name in _REASONINGS else name] = value
    return found


def text_of(message: Message) -> str:
    """Return the texts of a message."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def arguments_object(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as an object. Other arguments become the value of the key `arguments`."""
    value = arguments or {}
    if isinstance(value, str):
        with suppress(InvalidArgument):
            value = jsontext.parse(value, "arguments")
    return value if isinstance(value, dict) else {"arguments": arguments}


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in _TEXT_PARTS for part in content
    ):
        return "".join(str(part.get("text") or "") for part in content)
    return content


def _call(call: Any, *, parsed: bool = True) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    return [call.get("id"), function.get("name"), arguments_object(arguments) if parsed else arguments]


def _call_text(call: Any) -> str:
    """Return a tool call as JSON with one spelling."""
    made = _call(call, parsed=False)
    if made is not call and all(type(part) is str and len(part) <= _SHORT for part in made):
        return _short_call_text(*made)
    return jsontext.canonical(_call(call))


@lru_cache(maxsize=2048)
def _short_call_text(call_id: str, name: str, arguments: str) -> str:
    """Return the text of a call. Programs send the calls of their whole history with every request."""
    return jsontext.canonical([call_id, name, arguments_object(arguments)])


def _digest(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=_DIGEST_BYTES).digest()
