"""Requests that start a rollout."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.messages import Message

MAX_ID_CHARS = 256
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MAX_HEADER_CHARS = 4096
DEFAULT_MAX_TURNS = 10
DEFAULT_MAX_TOKENS_TOTAL = 8192


@dataclass(frozen=True, slots=True)
class Group:
    """The group of a rollout. The rollouts of a group have the same prompt and are compared with each other."""

    id: str
    index: int = 0
    size: int = 0
    """0 if it is unknown."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A chat of a recorded rollout, the original. A rollout that forks from it gets the recorded replies up to it.

    The trainer answers later chats. The agent loop must be replayable, and must send the same chats again.
    """

    rollout_id: str
    """The original. It must be in the journal of the same server, and belong to the same caller."""
    chat_number: int
    """The last chat whose recorded reply is used, from 1."""
    sample: str = "main"
    """The sample of this chat."""
    attempt: int = 1
    """The attempt of the original."""

    def __str__(self) -> str:
        """Return a text for people, such as "r1 at chat main 3"."""
        attempt = f" attempt {self.attempt}" if self.attempt > 1 else ""
        return f"{self.rollout_id}{attempt} at chat {self.sample} {self.chat_number}"

    def check(self, path: str) -> None:
        """Raise InvalidArgument for a fork that names no chat of an attempt."""
        check_id(self.rollout_id, f"{path}.rollout_id")
        check_id(self.sample, f"{path}.chat.sample")
        number: Any
        for name, number in (("chat.chat_number", self.chat_number), ("attempt", self.attempt)):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**32:
                raise InvalidArgument(f"{path}.{name}", f"{number!r} is not a number from 1")


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A request for a rollout, as its agent gets it."""

    rollout_id: str
    messages: Sequence[Message] = ()
    """The conversation to start from."""
    completion_params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, under OpenAI's names. The agent passes them to ctx.chat(messages, **params)."""
    pin_completion_params: bool = False
    """Whether completion_params replace the parameters that the agent passes. A judge's chats keep their own."""
    max_turns: int = DEFAULT_MAX_TURNS
    """The suggested limit of turns. The server does not enforce it."""
    max_tokens_total: int = DEFAULT_MAX_TOKENS_TOTAL
    """The suggested limit of tokens of the whole rollout. The server does not enforce it."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Any data from the trainer for the agent. An agent server parses it when the agent first reads it."""
    label: str | None = None
    """The reference answer."""
    attempt: int = 1
    """The number of the attempt, from 1. The trainer raises it."""
    agent_loop: str = ""
    """The name of the agent loop; empty if the server has only one."""
    group: Group | None = None
    priority: int = 0
    """A rollout with a higher priority leaves the queue first."""
    agent_timeout: float | None = None
    """The time limit in seconds from the acceptance, including the time in the queue.

    None means the server's limit, half an hour by default."""
    grader_timeout: float | None = None
    """The most seconds for the grader. None means the server's limit for agents, half an hour by default."""
    tool_server_url: str | None = None
    """The URL of a tool server of the trainer."""
    idempotency_key: str | None = None
    """Another name for the rollout."""
    evaluation: bool = False
    """Whether the rollout only measures the policy. Its outcome has the same flag, and is never trained on."""
    fork: Fork | None = None
    """The recorded chat from which the rollout continues; None if it begins anew."""
    server_url: str = ""
    """The trainer's address, if the trainer speaks HTTP."""
    api_key: str | None = field(default=None, repr=False)
    """The trainer's key, if the trainer speaks HTTP. The repr does not show it."""


_METADATA: Any = RolloutRequest.__dict__["metadata"]
"""The slot of `metadata`. Its value can be an unparsed text."""


def unread_metadata(request: RolloutRequest) -> Mapping[str, Any] | jsontext.Unparsed:
    """Return a request's metadata. Metadata from the network stays unparsed until the agent first reads it."""
    metadata: Mapping[str, Any] | jsontext.Unparsed = _METADATA.__get__(request)
    return metadata


def _read_metadata(request: RolloutRequest) -> Mapping[str, Any]:
    metadata = unread_metadata(request)
    if isinstance(metadata, jsontext.Unparsed):
        metadata = metadata.value()
        _METADATA.__set__(request, metadata)
    return metadata


RolloutRequest.metadata = property(_read_metadata, _METADATA.__set__)  # type: ignore[assignment, misc]


@dataclass(frozen=True, slots=True)
class CallbackTls:
    """TLS of a callback."""

    server_name: str = ""
    """The name in the trainer's certificate. If it is empty, the certificate must name the target's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """The address of a trainer that listens for callbacks."""

    target: str
    """HOST:PORT."""
    credential: str = field(default="", repr=False)
    """A bearer token. The repr does not show it."""
    state: bytes = field(default=b"", repr=False)
    """Bytes of the trainer. Every chat and every outcome sends them back."""
    delta: bool = False
    """Whether the trainer accepts a chat that refers to an earlier chat instead of repeating its messages."""
    tls: CallbackTls | None = None
    """TLS for the callback; None for plain text."""
    run_id: str = ""
    """The name of the trainer's run. If it is empty, the target identifies the run."""
    protocol: int = 0
    """The protocol version of the trainer; 0 if it is unknown."""
    features: tuple[str, ...] = ()
    """The features of the trainer, see services.proto."""
    outcome_by_reference: bool = False
    """Whether outcomes name the chats that the trainer answered instead of repeating their messages and tokens."""
    min_ping_interval: float | None = None
    """The shortest interval, in seconds, of the HTTP/2 pings that the trainer accepts; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C trace context."""

    traceparent: str
    tracestate: str = ""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """A request as the server gets it: the rollout, its callback, and a digest for comparing requests."""

    request: RolloutRequest
    callback: Callback | None = None
    trace: TraceContext | None = None
    digest: bytes = b""
    """The digests of the spec's fields in the order of DIGESTED. Equal values have equal digests."""
    size: int = 0
    """The size of the request on the wire, in bytes."""


DIGESTED = (
    "messages",
    "sampling",
    "max_turns",
    "max_tokens_total",
    "metadata_json",
    "label",
    "group",
    "priority",
    "agent_timeout",
    "grader_timeout",
    "tool_server_url",
    "idempotency_key",
    "evaluation",
    "fork",
    "pin_sampling",
)
"""The fields of RolloutSpec that a digest covers, without the agent loop, whose name may be left out.

The last one is in the digest only if it is true, because earlier versions do not have it."""


def spec_digest(request: RolloutRequest) -> bytes:
    """Return the digest of a request, see InitRequest.digest. Defaults that are left out or spelt out are equal."""
    metadata, fork = unread_metadata(request), request.fork
    values: tuple[Any, ...] = (
        list(request.messages),
        dict(request.completion_params),
        request.max_turns,
        request.max_tokens_total,
        metadata if isinstance(metadata, jsontext.Unparsed) else dict(metadata),
        request.label,
        None if request.group is None else [request.group.id, request.group.index, request.group.size],
        request.priority,
        request.agent_timeout,
        request.grader_timeout,
        request.tool_server_url,
        request.idempotency_key,
        request.evaluation,
        None if fork is None else [fork.rollout_id, fork.attempt, fork.sample, fork.chat_number],
    )
    if request.pin_completion_params:
        values = *values, True
    return b"".join([_kept_digest(value) if type(value) in _KEPT else _digest(value) for value in values])


def _digest(value: Any) -> bytes:
    return value.digest if isinstance(value, jsontext.Unparsed) else jsontext.digest(value)


_KEPT = {int, float, bool, type(None)}
_kept_digest = lru_cache(maxsize=1024, typed=True)(_digest)
"""Keeps the digests of numbers and of None: most requests have the same ones."""


def differing_fields(one: bytes, other: bytes) -> list[str]:
    """Return the paths of the fields in which two digests differ. Digests of other forms differ in the whole spec."""
    if one == other:
        return []
    whole = len(DIGESTED) * jsontext.DIGEST_BYTES
    one, other = (
        each + _kept_digest(False) if len(each) == whole - jsontext.DIGEST_BYTES else each for each in (one, other)
    )
    if not len(one) == len(other) == whole:
        return ["spec"]
    parts = (slice(at, at + jsontext.DIGEST_BYTES) for at in range(0, len(one), jsontext.DIGEST_BYTES))
    return [f"spec.{name}" for name, part in zip(DIGESTED, parts, strict=True) if one[part] != other[part]]


R = TypeVar("R", bound=RolloutRequest)


def copy_of(request: RolloutRequest, kind: type[R], **changes: Any) -> R:
    """Return a copy of a request with `changes`, as a `kind`.

    It does the same as dataclasses.replace, in a third of the time.
    """
    new = object.__new__(kind)
    changes.setdefault("metadata", unread_metadata(request))
    for name in RolloutRequest.__slots__:
        object.__setattr__(new, name, changes[name] if name in changes else getattr(request, name))
    return new


def check_id(value: str, name: str) -> None:
    """Raise InvalidArgument for an id that is not one visible path segment of 1 to 256 characters."""
    if not isinstance(value, str):
        raise InvalidArgument(name, f"is a {type(value).__name__}, not a str")
    if value.isalnum() and value.isascii() and len(value) <= MAX_ID_CHARS:
        return  # a fast check for the usual case
    if not value or len(value) > MAX_ID_CHARS:
        raise InvalidArgument(name, f"has {len(value)} characters, not 1 to {MAX_ID_CHARS}")
    jsontext.check_text(value, name)
    if not value.strip():
        raise InvalidArgument(name, "is blank")
    if value in (".", ".."):
        raise InvalidArgument(name, f"is {value}, which is a folder in paths and URLs: choose another one")
    if "/" in value or "\\" in value:
        raise InvalidArgument(name, "has a / or a \\, which separate parts of paths and URLs: write - or _ instead")
    if not value.isprintable() and _CONTROL.search(value):
        raise InvalidArgument(name, "has a control character")


def check_header(value: str, name: str) -> str:
    """Return the text. Raises InvalidArgument if it cannot be sent in a header."""
    if len(value) > MAX_HEADER_CHARS:
        raise InvalidArgument(name, f"is longer than {MAX_HEADER_CHARS} characters")
    if not value.isascii() or not value.isprintable():
        raise InvalidArgument(name, "has a character that cannot be sent in a header")
    return value


def check_run_id(value: str, name: str) -> str:
    """Return the name of a trainer's run. Raises InvalidArgument if the name is too long or cannot be printed."""
    if len(value) > MAX_ID_CHARS:
        raise InvalidArgument(name, f"has {len(value)} characters, more than {MAX_ID_CHARS}")
    return check_header(value, name)


def check_policy_name(value: str, name: str) -> str:
    """Return the name of a policy; empty for the only policy. Raises InvalidArgument for any other value.

    A name has at most 256 characters, and all of them can be printed.
    """
    if not isinstance(value, str):
        raise InvalidArgument(name, f"is a {type(value).__name__}, not a str")
    if len(value) > MAX_ID_CHARS:
        raise InvalidArgument(name, f"has {len(value)} characters, more than {MAX_ID_CHARS}")
    if not value.isprintable():
        raise InvalidArgument(name, "has a character that cannot be printed")
    return value


def check_params(params: Mapping[str, Any], name: str) -> None:
    """Raise InvalidArgument for a sampling parameter that is out of bounds. Only some parameters have bounds."""
    for key, low, high in (("temperature", 0.0, math.inf), ("top_p", 0.0, 1.0)):
        value = params.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not jsontext.is_finite(value):
            raise InvalidArgument(f"{name}.{key}", f"{reprlib.repr(value)} is not a finite number")
        if not low <= value <= high:
            raise InvalidArgument(f"{name}.{key}", f"{value} is " + ("negative" if value < low else f"above {high}"))
    limit = params.get("max_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgument(f"{name}.max_tokens", f"{limit!r} is not a whole number of at least 1")


LENGTHS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""The names of the parameter that limits the tokens of a reply. The first one that is set counts."""


def with_params(params: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with those of `others` replaced or added. None in `others` changes nothing."""
    given = {name: value for name, value in others.items() if value is not None}
    replaced = LENGTHS if given.keys() & {*LENGTHS} else ()
    return {name: value for name, value in params.items() if name not in replaced} | given


def pinned_params(request: RolloutRequest, server: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampling parameters that replace those of an agent's chats. `server` has those that the server pins.

    If the trainer's completion_params have a value for a parameter that the server pins, that value is used.
    """
    if not (server or request.pin_completion_params):
        return jsontext.NOTHING
    pins = {*server, *(LENGTHS if server.keys() & {*LENGTHS} else ())}
    given = request.completion_params
    own = {name: value for name, value in given.items() if request.pin_completion_params or name in pins}
    return with_params(server, own)


_NUMBERS = {"temperature": float, "top_p": float, "max_tokens": int}


def _as_number(value: Any, key: str) -> float | int | None:
    """Return the number of a text, and a whole float as an int if the parameter is an int; None for other values."""
    try:
        if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
            value = float(value)
        whole = _NUMBERS[key] is int
        return int(value) if whole and isinstance(value, float) and value.is_integer() else value
    except ValueError:
        return None


_LONGEST_NUMBER = 32
"""The most characters of a number in a text."""


def own_params(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a checked deep copy of sampling parameters. It has floats where the wire has floats: 1 becomes 1.0.

    As in the Osmosis SDK, "0.7" is a temperature, and 128.0 is a max_tokens.
    """
    own: dict[str, Any] = jsontext.copy(dict(params), name)
    try:
        check_params(own, name)
    except InvalidArgument:
        own |= {key: number for key in _NUMBERS if (number := _as_number(own.get(key), key)) is not None}
        check_params(own, name)
    return own | {key: float(own[key]) for key in ("temperature", "top_p") if own.get(key) is not None}
