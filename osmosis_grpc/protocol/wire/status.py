"""error.proto and google.rpc: converts between exceptions and statuses.

Each gRPC code has one exception class. A detail is a standard google.rpc message if such a message fits. Otherwise it
is a message of error.proto. A status is sent in a header, so its texts are short.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from osmosis_grpc.protocol import errors
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.protocol.errors import CLASSES, CallError
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.protocol.wire import times

DOMAIN = "osmosis.rollout"
"""The domain of the ErrorInfo of every refused call."""
_MAX_TEXT = 1000
_MAX_DETAIL = 200
_MAX_VIOLATIONS = 8


def to_status(error: CallError) -> status_pb2.Status:
    """Return the status for an exception."""
    status = status_pb2.Status(code=error.code, message=clip(describe(error), _MAX_TEXT))
    for detail in _details(error):
        status.details.add().Pack(detail)
    info = error_details_pb2.ErrorInfo(reason=_reason(error), domain=DOMAIN)
    if isinstance(error, errors.ContextLengthExceeded):
        info.metadata.update(tokens=str(error.tokens), limit=str(error.limit))
    status.details.add().Pack(info)
    return status


class _Detail(NamedTuple):
    """A detail of a status whose fields are attributes of an exception."""

    error: type[CallError]
    message: type[Message]
    fields: Mapping[str, str]
    """The fields of the detail by the names of the attributes. It is sent if the first attribute is set."""


_ATTEMPT = {"attempt": "attempt", "rollout_id": "rollout_id"}
_DETAILS = (
    _Detail(errors.NotFound, error_details_pb2.ResourceInfo, {"kind": "resource_type", "name": "resource_name"}),
    _Detail(errors.AlreadyExists, error_pb2.CurrentAttempt, _ATTEMPT),
    _Detail(errors.AlreadyExists, error_pb2.SpecDiffers, {"fields": "fields"}),
    _Detail(errors.Aborted, error_pb2.CurrentAttempt, _ATTEMPT),
    _Detail(
        errors.OutOfRange,
        error_pb2.EventsGone,
        {"first_event_number": "first_event_number", "first_cursor": "first_cursor"},
    ),
)
"""The details that only copy fields. The others have lists of violations, or become another exception class."""
_READ: tuple[type[Message], ...] = (
    *{detail.message for detail in _DETAILS},
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.ErrorInfo,
    error_pb2.UnknownChat,
)


def from_code(code: int, message: str, details: Iterable[any_pb2.Any] = ()) -> CallError:
    """Return the exception for a code, its message and its details."""
    received: dict[type[Message], Any] = {}
    for packed in details:
        for detail in _READ:
            if packed.TypeName() == detail.DESCRIPTOR.full_name:
                with contextlib.suppress(DecodeError):  # the code alone is enough
                    received[detail] = detail.FromString(packed.value)
    error = _error(CLASSES.get(code, errors.UnknownError), message, received)
    info = received.get(error_details_pb2.ErrorInfo)
    if info is not None and info.domain == DOMAIN:
        error.reason = clip(info.reason, _MAX_DETAIL)
    retry = received.get(error_details_pb2.RetryInfo)
    if retry is not None:
        error.retry_after = min(max(0.0, times.seconds(retry.retry_delay)), errors.LONGEST_PAUSE)
    return error


def _error(kind: type[CallError], message: str, received: Mapping[type[Message], Any]) -> CallError:
    if kind is errors.InvalidArgument:
        bad = received.get(error_details_pb2.BadRequest)
        rows = [(row.field, row.description) for row in bad.field_violations] if bad is not None else []
        info = received.get(error_details_pb2.ErrorInfo)
        if info is not None and (info.domain, info.reason) == (DOMAIN, errors.ContextLengthExceeded.REASON):
            tokens, limit = (_number(info.metadata[name]) for name in ("tokens", "limit"))
            return errors.ContextLengthExceeded(tokens, limit, rows[0][1] if rows else message)
        return errors.InvalidArgument(*rows[0], rows[1:]) if rows else errors.InvalidArgument("", message)
    if kind is errors.FailedPrecondition:
        unknown = received.get(error_pb2.UnknownChat)
        if unknown is not None:
            return errors.UnknownChat(unknown.sample, unknown.chat_number)
        failure = received.get(error_details_pb2.PreconditionFailure, error_details_pb2.PreconditionFailure())
        condition, subject = next(((row.type, row.subject) for row in failure.violations), ("", ""))
        return errors.FailedPrecondition(message, kind=condition, subject=subject)
    attributes: dict[str, Any] = {}
    for detail in _DETAILS:
        if detail.error is kind and detail.message in received:
            for name, field in detail.fields.items():
                value = getattr(received[detail.message], field)
                attributes[name] = value if isinstance(value, str | int) else tuple(value)
    return kind(message, **attributes)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _details(error: CallError) -> Iterator[Message]:
    if isinstance(error, errors.InvalidArgument):
        bad = error_details_pb2.BadRequest()
        for field, problem in error.violations[:_MAX_VIOLATIONS]:
            bad.field_violations.add(field=clip(field, _MAX_DETAIL), description=clip(problem, _MAX_DETAIL))
        yield bad
    elif isinstance(error, errors.FailedPrecondition) and error.kind:
        failure = error_details_pb2.PreconditionFailure()
        failure.violations.add(
            type=clip(error.kind, _MAX_DETAIL),
            subject=clip(error.subject, _MAX_DETAIL),
            description=clip(describe(error), _MAX_DETAIL),
        )
        yield failure
        if isinstance(error, errors.UnknownChat):
            yield error_pb2.UnknownChat(sample=error.sample, chat_number=error.chat_number)
    for detail in _DETAILS:
        if isinstance(error, detail.error) and getattr(error, next(iter(detail.fields))):
            values = {field: getattr(error, name) for name, field in detail.fields.items()}
            if detail.message is error_details_pb2.ResourceInfo:  # its texts may have any length
                values = {field: clip(text, _MAX_DETAIL) for field, text in values.items()}
                values["description"] = clip(describe(error), _MAX_DETAIL)
            yield detail.message(**values)
    if error.retry_after is not None:
        yield error_details_pb2.RetryInfo(retry_delay=times.duration(error.retry_after))


def _reason(error: CallError) -> str:
    """Return the reason of an error: its own one, the one of its kind, or the name of its code."""
    of_kind = {
        "INVALID_FIELD": isinstance(error, errors.InvalidArgument),
        "UNKNOWN_CHAT": isinstance(error, errors.UnknownChat),
        "EVENTS_GONE": isinstance(error, errors.OutOfRange),
        "REPLY_UNREADABLE": isinstance(error, errors.ReplyUnreadable),
        "SPEC_DIFFERS": isinstance(error, errors.AlreadyExists) and bool(error.fields),
        "ATTEMPT_SUPERSEDED": isinstance(error, errors.Aborted) and bool(error.attempt),
        "ROLLOUT_UNKNOWN": isinstance(error, errors.NotFound) and error.kind == "rollout",
        "ROLLOUT_ENDED": isinstance(error, errors.FailedPrecondition) and error.kind == "ENDED",
        "PROTOCOL": isinstance(error, errors.FailedPrecondition) and error.kind == "PROTOCOL",
    }
    return error.reason or next((name for name, holds in of_kind.items() if holds), code_pb2.Code.Name(error.code))
