"""Checks the requests of a trainer before they are sent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import UnionType
from typing import Any, TypedDict, get_args, get_type_hints

from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Fork, Group, InitRequest, Message, RolloutRequest
from osmosis_grpc.protocol.types.json_values import to_json
from osmosis_grpc.protocol.types.jsontext import check_text
from osmosis_grpc.protocol.types.messages import copy_messages
from osmosis_grpc.protocol.types.requests import check_id
from osmosis_grpc.protocol.wire.rollout import init_to_wire

MAX_INIT_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
"""The largest size of a request, in bytes. It leaves space in the message for the callback and the frame."""


class RolloutFields(TypedDict, total=False):
    """The fields of RolloutRequest by name, for type checkers."""

    rollout_id: str
    messages: Sequence[Message]
    completion_params: Mapping[str, Any]
    pin_completion_params: bool
    max_turns: int
    max_tokens_total: int
    metadata: Mapping[str, Any]
    label: str | None
    attempt: int
    agent_loop: str
    group: Group | None
    priority: int
    agent_timeout: float | None
    grader_timeout: float | None
    tool_server_url: str | None
    idempotency_key: str | None
    evaluation: bool
    fork: Fork | None
    server_url: str
    api_key: str | None


def _plain_kinds() -> Iterator[tuple[str, type]]:
    """Yield the fields of RolloutRequest whose type is str, int or bool, with or without None."""
    for name, hint in get_type_hints(RolloutRequest).items():
        for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
            if kind in (str, int, bool):
                yield name, kind


_KINDS = dict(_plain_kinds())


def checked(request: RolloutRequest | None, changes: RolloutFields | Mapping[str, Any]) -> RolloutRequest:
    """Return the request with `changes`, after checking it. Raises TypeError, and InvalidArgument naming the field."""
    if request is not None and not isinstance(request, RolloutRequest):
        raise TypeError(f"a RolloutRequest or its fields by name is needed, not a {type(request).__name__}")
    known = [field.name for field in fields(RolloutRequest)]
    for name in sorted(changes.keys() - set(known)):
        raise TypeError(f"RolloutRequest has no field {name}; its fields are: {', '.join(known)}")
    full = replace(request, **changes) if request else RolloutRequest(**changes)
    check_id(full.rollout_id, "rollout_id")
    for name, kind in _KINDS.items():
        value = getattr(full, name)
        if type(value) is not kind and value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidArgument(name, f"is a {type(value).__name__}, not a {kind.__name__}")
        if isinstance(value, str):
            check_text(value, name)
    if not 0 < full.attempt < 2**32:
        raise InvalidArgument("attempt", f"{full.attempt} is not a number from 1")
    if full.fork is not None:
        if not isinstance(full.fork, Fork):
            raise InvalidArgument("fork", f"is a {type(full.fork).__name__}, not a Fork")
        full.fork.check("fork")
    metadata = to_json(full.metadata, "metadata") if full.metadata else {}
    if not isinstance(metadata, dict):
        raise InvalidArgument("metadata", f"is a {type(full.metadata).__name__}, not a dict")
    full = replace(full, messages=copy_messages(full.messages, "messages"), metadata=metadata)
    try:
        size = init_to_wire(InitRequest(request=full)).ByteSize()
    except (TypeError, ValueError) as error:
        raise InvalidArgument("", f"the request cannot be sent: {error}") from error
    if size > MAX_INIT_BYTES:
        raise InvalidArgument("messages", f"the request has {size} bytes, more than {MAX_INIT_BYTES}")
    return full


def check_selection(rollout_id: str, group_id: str, prefix: str, *, everything: bool) -> None:
    """Raise InvalidArgument unless exactly one of the four arguments is set."""
    if sum(map(bool, (rollout_id, group_id, prefix, everything))) != 1:
        raise InvalidArgument("selection", "name a rollout_id, a group_id, a prefix, or everything=True")
