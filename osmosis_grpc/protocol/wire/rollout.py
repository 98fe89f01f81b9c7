"""rollout.proto: requests to start a rollout, and its state."""

from dataclasses import replace

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import tokens_pb2
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.outcome import RolloutState
from osmosis_grpc.protocol.types.requests import (
    Callback,
    CallbackTls,
    Fork,
    Group,
    InitRequest,
    RolloutRequest,
    TraceContext,
    check_header,
    check_run_id,
    spec_digest,
    unread_metadata,
)
from osmosis_grpc.protocol.types.rollout_info import Activity, RolloutInfo
from osmosis_grpc.protocol.wire import times
from osmosis_grpc.protocol.wire.field_conversion import Codec, Converter, EnumNames
from osmosis_grpc.protocol.wire.message import message_to_wire, messages_from_wire, params_from_wire, params_to_wire
from osmosis_grpc.protocol.wire.outcome import GROUP, checked_group, checked_id, outcome_from_wire, outcome_to_wire
from osmosis_grpc.protocol.wire.outcome_size import cut_to_limit

MAX_METADATA_BYTES = 1024 * 1024
"""The default limit of metadata_json."""

STATES = EnumNames(RolloutState, pb.RolloutState, "a state")
_HEADER = Codec(str, check_header)
_TRACE = Converter(TraceContext, pb.TraceContext, traceparent=_HEADER, tracestate=_HEADER)
# This message is a field of Callback. Its converter must be made first.
Converter(CallbackTls, pb.CallbackTls, server_name=_HEADER)
ACTIVITY = Converter(Activity, pb.Activity)


def check_size(message: pb.InitRequest, max_metadata_bytes: int = MAX_METADATA_BYTES) -> None:
    """Raise InvalidArgument for metadata above the limit."""
    if len(message.spec.metadata_json.encode()) > max_metadata_bytes:
        raise InvalidArgument("spec.metadata_json", f"is larger than {max_metadata_bytes} bytes")


def init_from_wire(message: pb.InitRequest, *, any_role: bool = False) -> InitRequest:
    """Return a checked request to start a rollout. Raises InvalidArgument naming the field.

    `any_role` is that of message_from_wire().
    """
    spec = message.spec
    request = _SPEC.from_wire(
        spec,
        "spec.",
        rollout_id=checked_id(message.rollout_id, "rollout_id"),
        attempt=message.attempt or 1,
        messages=messages_from_wire(spec.messages, "spec.messages", any_role=any_role),
        metadata=jsontext.Unparsed.checked(spec.metadata_json, "spec.metadata_json") if spec.metadata_json else {},
    )
    callback = _CALLBACK.field_of(message, "callback")
    trace = _TRACE.field_of(message, "trace_context")
    return InitRequest(
        request=request, callback=callback, trace=trace, digest=spec_digest(request), size=message.ByteSize()
    )


def origin_from_wire(message: pb.InitRequest) -> tuple[Group | None, Fork | None]:
    """Return the group and the fork of a request. Raises InvalidArgument naming the field."""
    spec = message.spec
    return (
        checked_group(spec.group, "spec.group") if spec.HasField("group") else None,
        _fork_from_wire(spec.fork, "spec.fork") if spec.HasField("fork") else None,
    )


def init_to_wire(init: InitRequest, *, secrets: bool = True, blobs: bool = False) -> pb.InitRequest:
    """Return a request as a message. If `secrets` is False, it leaves out the callback's credential and state.

    `blobs` is that of message_to_wire().
    """
    request, trace = init.request, init.trace
    return pb.InitRequest(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        spec=_SPEC.to_wire(
            request,
            messages=[message_to_wire(message, blobs=blobs) for message in request.messages],
            metadata_json=_metadata_to_wire(request),
        ),
        trace_context=_TRACE.to_wire(trace) if trace else None,
        callback=_callback_to_wire(init.callback, secrets=secrets) if init.callback else None,
    )


def _fork_from_wire(message: pb.Fork, path: str) -> Fork:
    chat = message.chat
    fork = Fork(message.rollout_id, chat.chat_number, chat.sample, message.attempt or 1)
    fork.check(path)
    return fork


def _fork_to_wire(fork: Fork) -> pb.Fork:
    chat = tokens_pb2.ChatRef(sample=fork.sample, chat_number=fork.chat_number)
    return pb.Fork(rollout_id=fork.rollout_id, attempt=fork.attempt, chat=chat)


def _metadata_to_wire(request: RolloutRequest) -> str:
    metadata = unread_metadata(request)
    if isinstance(metadata, jsontext.Unparsed):
        return metadata.text
    return jsontext.render(metadata) if metadata else ""


def wants_delta(form: int, field: str, *, default: bool) -> bool:
    """Return whether a trainer wants histories as deltas. Raises InvalidArgument for an unknown form."""
    forms = {
        int(pb.HISTORY_FORM_UNSPECIFIED): default,
        int(pb.HISTORY_FORM_FULL): False,
        int(pb.HISTORY_FORM_DELTA): True,
    }
    if form not in forms:
        raise InvalidArgument(field, f"{form} is not a form of histories")
    return forms[form]


def _target(target: str, path: str) -> str:
    if not target:
        raise InvalidArgument(path, "is empty")
    return target


_CALLBACK = Converter(
    Callback,
    pb.Callback,
    target=Codec(str, _target),
    credential=_HEADER,
    delta=Codec(
        lambda delta: pb.HISTORY_FORM_DELTA if delta else pb.HISTORY_FORM_UNSPECIFIED,
        lambda form, path: wants_delta(form, path, default=False),
        "history",
    ),
    run_id=Codec(str, check_run_id),
    min_ping_interval=Codec(times.duration, lambda message, path: times.valid_seconds(message, path, 0)),
)


def _callback_to_wire(callback: Callback, *, secrets: bool) -> pb.Callback:
    return _CALLBACK.to_wire(callback if secrets else replace(callback, credential="", state=b""))


def callback_to_bytes(callback: Callback, *, secrets: bool) -> bytes:
    """Return a serialized callback. If `secrets` is False, it leaves out the credential and the state."""
    return _callback_to_wire(callback, secrets=secrets).SerializeToString(deterministic=True)


def callback_from_bytes(data: bytes) -> Callback:
    """Return the callback of a serialized message. Raises DecodeError or InvalidArgument for other bytes."""
    return _CALLBACK.from_wire(pb.Callback.FromString(data), "callback.")


_TIMEOUT = Codec(times.duration, times.checked_seconds)
_FORK = Codec(_fork_to_wire, _fork_from_wire)
_GROUP = Codec(GROUP.to_wire, checked_group)
_SPEC = Converter(
    RolloutRequest,
    pb.RolloutSpec,
    ("rollout_id", "attempt", "messages", "metadata", "metadata_json", "server_url", "api_key"),
    completion_params=Codec(lambda params: params_to_wire(params) if params else None, params_from_wire, "sampling"),
    pin_completion_params=Codec(bool, lambda pin, path: pin, "pin_sampling"),
    group=_GROUP,
    agent_timeout=_TIMEOUT,
    grader_timeout=_TIMEOUT,
    tool_server_url=Codec(str, lambda url, path: url or None),
    idempotency_key=Codec(str, lambda key, path: checked_id(key, path) if key else None),
    fork=_FORK,
)
ROLLOUT = Converter(
    RolloutInfo,
    pb.Rollout,
    state=STATES.codec(RolloutState.ACCEPTED),
    group=_GROUP,
    fork=_FORK,
    outcome=Codec(lambda outcome: cut_to_limit(outcome_to_wire(outcome)), outcome_from_wire),
)
