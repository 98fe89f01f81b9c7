"""event.proto: a table with one row for each kind of event. Also annotation.proto: an annotation is an event."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, outcome_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import event_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import EndedBy, Fork, Group, events, jsontext
from osmosis_grpc.protocol.types.annotation import Annotation, SegmentAnnotation
from osmosis_grpc.protocol.types.events import TrajectoryEvent
from osmosis_grpc.protocol.types.tensors import np
from osmosis_grpc.protocol.wire import times
from osmosis_grpc.protocol.wire.chat import PURPOSES, RECEIPTS, reply_bytes, reply_from_wire, tools_to_wire
from osmosis_grpc.protocol.wire.field_conversion import JSON_OBJECT, Codec, Converter
from osmosis_grpc.protocol.wire.message import (
    TOOLS,
    frozen_bytes,
    message_from_wire,
    message_to_wire,
    messages_from_wire,
    params_from_wire,
    params_to_wire,
    tool_call_from_wire,
    tool_call_to_wire,
    tools_from_wire,
)
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire, referring_bytes
from osmosis_grpc.protocol.wire.outcome_size import cut_to_limit
from osmosis_grpc.protocol.wire.protobuf_encoding import head, repeated, varint
from osmosis_grpc.protocol.wire.rollout import init_from_wire, init_to_wire, origin_from_wire
from osmosis_grpc.protocol.wire.tokens import SPLITS

_VALUES = Codec(lambda values: values.tolist(), lambda values, path: np.array(values, dtype="<f4"))

SEGMENT_ANNOTATION = Converter(
    SegmentAnnotation, annotation_pb2.SegmentAnnotation, logprobs=_VALUES, entropies=_VALUES, advantages=_VALUES
)
ANNOTATION = Converter(Annotation, annotation_pb2.Annotation)


def annotation_from_wire(message: annotation_pb2.Annotation, path: str = "annotation") -> Annotation:
    """Return a checked annotation without its time. Raises InvalidArgument."""
    annotation = ANNOTATION.from_wire(message, f"{path}.")
    annotation.check(path)
    return annotation


def annotate_request(rollout_id: str, attempt: int, annotation: Annotation) -> annotation_pb2.AnnotateRequest:
    """Return the request that stores an annotation. Raises InvalidArgument naming a bad field."""
    annotation.check()
    return annotation_pb2.AnnotateRequest(
        rollout_id=rollout_id, attempt=attempt, annotation=ANNOTATION.to_wire(annotation)
    )


def without_tokens(event: TrajectoryEvent) -> TrajectoryEvent:
    """Return the event. If it has a reply, the reply has no tokens in it."""
    if not isinstance(event.kind, events.ChatAnswered):
        return event
    bare = replace(
        event.kind.response, tokens=None, prompt_ids=None, prompt_extras=jsontext.NOTHING, prompt_prefix=0, wire=b""
    )
    return replace(event, kind=replace(event.kind, response=bare))


def event_to_wire(event: TrajectoryEvent, *, tokens: bool = True) -> pb.TrajectoryEvent:
    """Return an event as a message. An outcome has no messages and no segments in it.

    Without `tokens`, a reply has no tokens in it.
    """
    if not tokens:
        event = without_tokens(event)
    field, to_wire, _ = _KINDS[type(event.kind)]
    return pb.TrajectoryEvent(
        rollout_id=event.rollout_id,
        attempt=event.attempt,
        event_number=event.event_number,
        time=times.timestamp(event.time),
        **{field: to_wire(event.kind)},
    )


def event_from_wire(message: pb.TrajectoryEvent) -> TrajectoryEvent:
    """Return the event of a message. Raises InvalidArgument for a kind of a newer protocol."""
    field = message.WhichOneof("kind")
    if field is None:
        raise InvalidArgument("kind", f"event {message.event_number} has an unknown kind")
    kind = _FROM_WIRE[field](getattr(message, field))
    return TrajectoryEvent(message.rollout_id, message.attempt, message.event_number, times.unix(message.time), kind)


def kind_to_bytes(kind: events.EventKind) -> tuple[int, bytes]:
    """Return the kind of an event in a journal's form: the number of its field, and its bytes.

    An outcome only refers to its chats, because the earlier events have the chats. Long data URLs are blobs there.
    """
    field, to_wire, _ = _KINDS[type(kind)]
    to_bytes = _TO_BYTES.get(type(kind))
    return _NUMBERS[field], to_bytes(kind) if to_bytes else to_wire(kind).SerializeToString()


def kind_from_bytes(number: int, data: bytes) -> events.EventKind:
    """Return the kind of an event from its journal's form; see kind_to_bytes(). Raises InvalidArgument."""
    field = _FIELDS[number]
    message = getattr(pb.TrajectoryEvent(), field)
    message.MergeFromString(data)
    return _FROM_WIRE[field](message)


def origin_from_bytes(data: bytes) -> tuple[Group | None, Fork | None]:
    """Return the group and the fork of a rollout from the journal's form of its event Accepted.

    The rest of its request is not converted. Raises InvalidArgument.
    """
    return origin_from_wire(pb.AcceptedEvent.FromString(data).request)


def kind_number(kind: type[events.EventKind]) -> int:
    """Return the number that a journal has for a kind."""
    return _NUMBERS[_KINDS[kind][0]]


def _answered(kind: events.ChatAnswered) -> pb.ChatAnsweredEvent:
    if type(kind.response.message.get("content")) is list:  # the received bytes may have blobs
        kind = replace(kind, response=replace(kind.response, wire=b""))
    return pb.ChatAnsweredEvent.FromString(_answered_bytes(kind))


def _answered_bytes(kind: events.ChatAnswered) -> bytes:
    """Serialize an answered chat. Uses the reply's received bytes if the reply has them."""
    reply = kind.response.wire or reply_bytes(kind.response)
    latency = times.duration(kind.latency).SerializeToString()
    return b"".join(
        (
            _sample(kind.sample),
            varint(_NUMBER, kind.chat_number),
            head(_RESPONSE, len(reply)),
            reply,
            head(_LATENCY, len(latency)),
            latency,
            varint(_RECORDED, kind.recorded_event),
            varint(_FORKED, int(kind.forked)),
        )
    )


def _requested_bytes(kind: events.ChatRequested, *, blobs: bool = True) -> bytes:
    rest = b""
    if kind.params or kind.tools is not None or kind.policy:
        sampling, tools = params_to_wire(kind.params) if kind.params else None, tools_to_wire(kind.tools)
        passed = None if kind.passed is None else params_to_wire(kind.passed)
        rest = pb.ChatRequestedEvent(
            sampling=sampling, tools=tools, policy=kind.policy, passed=passed
        ).SerializeToString()
    return b"".join(
        (
            _sample(kind.sample),
            varint(_NUMBER, kind.chat_number),
            varint(_CONTINUES, kind.parent_chat),
            repeated(_MESSAGES, frozen_bytes(kind.messages, blobs=blobs)),
            varint(_PURPOSE, PURPOSES.numbers[kind.purpose]),
            rest,
        )
    )


@lru_cache(256)
def _sample(name: str) -> bytes:
    """Return the serialized name of a sample. The events of a sample begin with these bytes."""
    return pb.ChatRequestedEvent(sample=name).SerializeToString()


def _read_requested(m: pb.ChatRequestedEvent) -> events.ChatRequested:
    return events.ChatRequested(
        sample=m.sample,
        chat_number=m.chat_number,
        parent_chat=m.parent_chat,
        messages=messages_from_wire(m.messages, "messages", any_role=True),
        params=params_from_wire(m.sampling, "sampling"),
        tools=tools_from_wire(m.tools.tools, "tools.tools") if m.HasField("tools") else None,
        purpose=PURPOSES.read(m.purpose, "purpose"),
        policy=m.policy,
        passed=params_from_wire(m.passed, "passed") if m.HasField("passed") else None,
    )


def _read_answered(m: pb.ChatAnsweredEvent) -> events.ChatAnswered:
    return events.ChatAnswered(
        sample=m.sample,
        chat_number=m.chat_number,
        response=reply_from_wire(m.response),
        latency=times.seconds(m.latency),
        recorded_event=m.recorded_event,
        forked=m.forked,
    )


def _ended(kind: events.Ended, outcome: outcome_pb2.RolloutOutcome | None) -> pb.EndedEvent:
    return pb.EndedEvent(outcome=outcome, process_id=kind.by.process_id, trainer_run=kind.by.trainer_run)


def _ended_bytes(kind: events.Ended) -> bytes:
    outcome = referring_bytes(kind.outcome, blobs=True)
    return b"".join((head(_OUTCOME, len(outcome)), outcome, _ended(kind, None).SerializeToString()))


def _read_ended(m: pb.EndedEvent) -> events.Ended:
    return events.Ended(outcome_from_wire(m.outcome, "outcome"), EndedBy(m.process_id, m.trainer_run))


def _converter(kind: type[events.EventKind], **codecs: Codec) -> "_Row":
    message = getattr(pb, f"{kind.__name__}Event")
    converter = Converter(kind, message, **codecs)
    return _FIELD_OF[message.DESCRIPTOR], converter.to_wire, converter.from_wire


def _accepted(*, blobs: bool) -> "_Row":
    to_wire = partial(init_to_wire, secrets=False, blobs=blobs)
    init = Codec(to_wire, lambda m, path: init_from_wire(m, any_role=True), "request")
    return _converter(events.Accepted, init=init, tools=TOOLS)


def _tool_returned(*, blobs: bool) -> "_Row":
    message = Codec(partial(message_to_wire, blobs=blobs), partial(message_from_wire, any_role=True))
    return _converter(events.ToolReturned, message=message)


def _to_bytes(row: "_Row") -> Callable[[Any], bytes]:
    return lambda kind: row[1](kind).SerializeToString()


_ONEOF = pb.TrajectoryEvent.DESCRIPTOR.oneofs_by_name["kind"].fields
_FIELD_OF = {field.message_type: field.name for field in _ONEOF}
_Row = tuple[str, Callable[[Any], Any], Callable[[Any], events.EventKind]]
_KINDS: dict[type[events.EventKind], _Row] = {
    events.Accepted: _accepted(blobs=False),
    events.ChatRequested: (
        "chat_requested",
        lambda k: pb.ChatRequestedEvent.FromString(_requested_bytes(k, blobs=False)),
        _read_requested,
    ),
    events.ChatAnswered: ("chat_answered", _answered, _read_answered),
    events.ToolCalled: _converter(events.ToolCalled, call=Codec(tool_call_to_wire, tool_call_from_wire)),
    events.ToolReturned: _tool_returned(blobs=False),
    events.Logged: _converter(events.Logged, data=JSON_OBJECT._replace(name="data_json")),
    events.Ended: ("ended", lambda k: _ended(k, cut_to_limit(outcome_to_wire(k.outcome, head=True))), _read_ended),
    events.Delivered: _converter(events.Delivered, receipt=RECEIPTS.codec(None)),
    events.Started: _converter(events.Started),
    events.Resumed: _converter(events.Resumed),
    events.ChatFailed: _converter(events.ChatFailed),
    events.SampleAdded: _converter(events.SampleAdded),
    events.SegmentClosed: _converter(events.SegmentClosed, split=SPLITS.codec(None)),
    events.CancelAsked: _converter(events.CancelAsked),
    events.Graded: _converter(events.Graded),
    events.Annotated: _converter(
        events.Annotated, annotation=Codec(ANNOTATION.to_wire, lambda m, path: ANNOTATION.from_wire(m))
    ),
}
_TO_BYTES: dict[type[events.EventKind], Callable[[Any], bytes]] = {
    events.Accepted: _to_bytes(_accepted(blobs=True)),
    events.ChatRequested: _requested_bytes,
    events.ChatAnswered: _answered_bytes,
    events.ToolReturned: _to_bytes(_tool_returned(blobs=True)),
    events.Ended: _ended_bytes,
}
"""The kinds that have another form in a journal, or are serialized without a message because they are frequent."""
_FROM_WIRE = {field: from_wire for field, _, from_wire in _KINDS.values()}
_NUMBERS = {field.name: field.number for field in _ONEOF}
ANNOTATED = _NUMBERS["annotated"]
"""The number of the kind Annotated in a journal."""
_FIELDS = {number: field for field, number in _NUMBERS.items()}
_NUMBER, _CONTINUES, _MESSAGES, _PURPOSE = (
    pb.ChatRequestedEvent.DESCRIPTOR.fields_by_name[name].number
    for name in ("chat_number", "parent_chat", "messages", "purpose")
)
_RESPONSE, _LATENCY, _RECORDED, _FORKED = (
    pb.ChatAnsweredEvent.DESCRIPTOR.fields_by_name[name].number
    for name in ("response", "latency", "recorded_event", "forked")
)
_OUTCOME = pb.EndedEvent.DESCRIPTOR.fields_by_name["outcome"].number
