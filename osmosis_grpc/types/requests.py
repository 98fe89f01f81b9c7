"""What starts a rollout."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import jsontext
from osmosis_grpc.types.fast_init import fast_init
from osmosis_grpc.types.messages import Message

MAX_ID_CHARS = 256
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MAX_HEADER_CHARS = 4096
DEFAULT_MAX_TURNS = 10
DEFAULT_MAX_TOKENS_TOTAL = 8192


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one prompt that are compared with one another."""

    id: str
    index: int = 0
    size: int = 0
    """0 when not told."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A rollout as its agent sees it."""

    rollout_id: str
    messages: Sequence[Message] = ()
    """The conversation to start from."""
    completion_params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, under OpenAI's names; pass them on with ctx.chat(messages, **params)."""
    max_turns: int = DEFAULT_MAX_TURNS
    """Advice: the most turns."""
    max_tokens_total: int = DEFAULT_MAX_TOKENS_TOTAL
    """Advice: the most tokens of the whole rollout."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the trainer wants the agent to know. On an agent server it is parsed when it is read."""
    label: str | None = None
    """The reference answer."""
    attempt: int = 1
    """From 1, raised by the trainer."""
    agent_loop: str = ""
    """The agent loop asked for; empty where there is only one."""
    group: Group | None = None
    priority: int = 0
    """Higher leaves the queue first."""
    agent_timeout: float | None = None
    """Seconds from acceptance, queue time included; None: the server's limit, half an hour unless set otherwise."""
    grader_timeout: float | None = None
    """Seconds for the grader."""
    tool_server_url: str | None = None
    """A tool server of the trainer's."""
    idempotency_key: str | None = None
    """Another name for the rollout."""
    evaluation: bool = False
    """Whether it measures the policy: its outcome says so and is never trained on."""
    server_url: str = ""
    """The trainer's address, where it speaks HTTP."""
    api_key: str | None = field(default=None, repr=False)
    """The trainer's key, where it speaks HTTP. Never shown."""


_METADATA: Any = RolloutRequest.__dict__["metadata"]
"""Its slot, which may hold a text that is not parsed."""


def unread_metadata(request: RolloutRequest) -> Mapping[str, Any] | jsontext.Unparsed:
    """Returns a request's metadata as it is held: unparsed while nobody has read it."""
    held: Mapping[str, Any] | jsontext.Unparsed = _METADATA.__get__(request)
    return held


def _read_metadata(request: RolloutRequest) -> Mapping[str, Any]:
    held = unread_metadata(request)
    if isinstance(held, jsontext.Unparsed):
        held = held.value()
        _METADATA.__set__(request, held)
    return held


RolloutRequest.metadata = property(_read_metadata, _METADATA.__set__)  # type: ignore[assignment, misc]


@dataclass(frozen=True, slots=True)
class CallbackTls:
    """A callback over TLS."""

    server_name: str = ""
    """The name that the trainer's certificate carries; the host of the target when not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """Where a trainer listens."""

    target: str
    """HOST:PORT."""
    credential: str = field(default="", repr=False)
    """A bearer token. Never shown."""
    state: bytes = field(default=b"", repr=False)
    """Echoed in every chat and completion."""
    delta: bool = False
    """Whether chats may refer to an earlier chat instead of repeating it."""
    tls: CallbackTls | None = None
    """Set: speak TLS."""
    run_id: str = ""
    """Names the run of the trainer; where it is empty the target does."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C trace context."""

    traceparent: str
    tracestate: str = ""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """A request as it arrives: the rollout, where its calls go, and what tells it from another."""

    request: RolloutRequest
    callback: Callback | None = None
    trace: TraceContext | None = None
    digest: bytes = b""
    """Equal for equal bodies; callback and trace context are not part of the body."""
    size: int = 0
    """Bytes on the wire."""


def copy_of(request: RolloutRequest, **changes: Any) -> RolloutRequest:
    """A request with other values in some fields: dataclasses.replace without its checks, in a third of its time."""
    new = object.__new__(RolloutRequest)
    changes.setdefault("metadata", unread_metadata(request))
    for name in RolloutRequest.__slots__:
        object.__setattr__(new, name, changes[name] if name in changes else getattr(request, name))
    return new


def check_id(value: str, name: str) -> None:
    """Refuse an id that is not one visible path segment of 1 to 256 characters."""
    if not isinstance(value, str):
        raise InvalidArgument(name, f"is a {type(value).__name__}, not a str")
    if value.isalnum() and value.isascii() and len(value) <= MAX_ID_CHARS:
        return  # what most are, at a glance
    if not value or len(value) > MAX_ID_CHARS:
        raise InvalidArgument(name, f"has {len(value)} characters, not 1 to {MAX_ID_CHARS}")
    jsontext.check_text(value, name)
    if not value.strip():
        raise InvalidArgument(name, "is blank")
    if value in (".", "..") or "/" in value or "\\" in value:
        raise InvalidArgument(name, "is not one path segment")
    if not value.isprintable() and _CONTROL.search(value):
        raise InvalidArgument(name, "holds a control character")


def check_header(value: str, name: str) -> str:
    """Refuse a text that cannot stand in a header; returns it."""
    if len(value) > MAX_HEADER_CHARS:
        raise InvalidArgument(name, f"is longer than {MAX_HEADER_CHARS} characters")
    if not value.isascii() or not value.isprintable():
        raise InvalidArgument(name, "holds a character that cannot stand in a header")
    return value


def check_run_id(value: str, name: str) -> None:
    """Refuse a name of a trainer's run that is too long or cannot be printed."""
    if len(value) > MAX_ID_CHARS:
        raise InvalidArgument(name, f"has {len(value)} characters, more than {MAX_ID_CHARS}")
    check_header(value, name)


def check_params(params: Mapping[str, Any], name: str) -> None:
    """Refuse sampling parameters out of bounds; those without known bounds pass."""
    for key, low, high in (("temperature", 0.0, math.inf), ("top_p", 0.0, 1.0)):
        value = params.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise InvalidArgument(f"{name}.{key}", f"{reprlib.repr(value)} is not a finite number")
        if not low <= value <= high:
            raise InvalidArgument(f"{name}.{key}", f"{value} is " + ("negative" if value < low else f"above {high}"))
    limit = params.get("max_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgument(f"{name}.max_tokens", f"{limit!r} is not a whole number of at least 1")


def own_params(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A checked deep copy of sampling parameters, as they come back off the wire: temperature 1 is 1.0."""
    own: dict[str, Any] = jsontext.copy(dict(params), name)
    check_params(own, name)
    return own | {key: float(own[key]) for key in ("temperature", "top_p") if own.get(key) is not None}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
