"""error.proto and google.rpc: converts between exceptions and statuses.

Each gRPC code has one exception class. A detail is a standard google.rpc message if such a message fits. Otherwise it
is a message of error.proto. A status is sent in a header, so its texts are short.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
    """Returns the status for an exception."""
    status = status_pb2.Status(code=error.code, message=clip(describe(error), _MAX_TEXT))
    for detail in _details(error):
        status.details.add().Pack(detail)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=_reason(error), domain=DOMAIN))
    return status


def from_code(code: int, message: str, details: Iterable[any_pb2.Any] = ()) -> CallError:
    """Returns the exception for a code, its message and its details."""
    found: dict[type[Message], Message] = {}
    for packed in details:
        for detail in _READ:
            if packed.TypeName() == detail.DESCRIPTOR.full_name:
                with contextlib.suppress(DecodeError):  # the code alone is enough
                    found[detail] = detail.FromString(packed.value)
    kind = CLASSES.get(code, errors.UnknownError)
    build = _BUILD.get(kind)
    error = build(message, found) if build else kind(message)
    info = found.get(error_details_pb2.ErrorInfo)
    if isinstance(info, error_details_pb2.ErrorInfo) and info.domain == DOMAIN:
        error.reason = clip(info.reason, _MAX_DETAIL)
    retry = found.get(error_details_pb2.RetryInfo)
    if isinstance(retry, error_details_pb2.RetryInfo):
        error.retry_after = min(max(0.0, times.seconds(retry.retry_delay)), errors.LONGEST_PAUSE)
    return error


def _details(error: CallError) -> Iterator[Message]:
    if isinstance(error, errors.InvalidArgument):
        bad = error_details_pb2.BadRequest()
        for field, problem in error.violations[:_MAX_VIOLATIONS]:
            bad.field_violations.add(field=clip(field, _MAX_DETAIL), description=clip(problem, _MAX_DETAIL))
        yield bad
    elif isinstance(error, errors.NotFound) and error.kind:
        yield error_details_pb2.ResourceInfo(
            resource_type=clip(error.kind, _MAX_DETAIL),
            resource_name=clip(error.name, _MAX_DETAIL),
            description=clip(describe(error), _MAX_DETAIL),
        )
    elif isinstance(error, errors.AlreadyExists | errors.Aborted) and error.attempt:
        yield error_pb2.CurrentAttempt(rollout_id=error.rollout_id, attempt=error.attempt)
        if isinstance(error, errors.AlreadyExists) and error.fields:
            yield error_pb2.SpecDiffers(fields=error.fields)
    elif isinstance(error, errors.OutOfRange):
        yield error_pb2.EventsGone(first_event_number=error.first_event_number, first_cursor=error.first_cursor)
    elif isinstance(error, errors.FailedPrecondition) and error.kind:
        violation = error_details_pb2.PreconditionFailure.Violation(
            type=clip(error.kind, _MAX_DETAIL),
            subject=clip(error.subject, _MAX_DETAIL),
            description=clip(describe(error), _MAX_DETAIL),
        )
        yield error_details_pb2.PreconditionFailure(violations=[violation])
        if isinstance(error, errors.UnknownChat):
            yield error_pb2.UnknownChat(sample=error.sample, chat_number=error.chat_number)
    if error.retry_after is not None:
        yield error_details_pb2.RetryInfo(retry_delay=times.duration(error.retry_after))


_Found = dict[type[Message], Message]
_READ: tuple[type[Message], ...] = (
    error_details_pb2.BadRequest,
    error_details_pb2.ResourceInfo,
    error_details_pb2.RetryInfo,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.ErrorInfo,
    error_pb2.CurrentAttempt,
    error_pb2.SpecDiffers,
    error_pb2.EventsGone,
    error_pb2.UnknownChat,
)


def _reason(error: CallError) -> str:
    """Returns the reason of an error: its own one, the one of its kind, or the name of its code."""
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


def _already_exists(message: str, found: _Found) -> CallError:
    attempt: Any = found.get(error_pb2.CurrentAttempt, error_pb2.CurrentAttempt())
    differs: Any = found.get(error_pb2.SpecDiffers, error_pb2.SpecDiffers())
    return errors.AlreadyExists(
        message, rollout_id=attempt.rollout_id, attempt=attempt.attempt, fields=tuple(differs.fields)
    )


def _invalid(message: str, found: _Found) -> CallError:
    bad: Any = found.get(error_details_pb2.BadRequest, error_details_pb2.BadRequest())
    rows = [(v.field, v.description) for v in bad.field_violations]
    return errors.InvalidArgument(*rows[0], rows[1:]) if rows else errors.InvalidArgument("", message)


def _precondition(message: str, found: _Found) -> CallError:
    unknown: Any = found.get(error_pb2.UnknownChat)
    if unknown is not None:
        return errors.UnknownChat(unknown.sample, unknown.chat_number)
    failure: Any = found.get(error_details_pb2.PreconditionFailure, error_details_pb2.PreconditionFailure())
    kind, subject = next(((row.type, row.subject) for row in failure.violations), ("", ""))
    return errors.FailedPrecondition(message, kind=kind, subject=subject)


def _of_detail(
    make: Callable[..., CallError], detail: type[Message], /, **fields: str
) -> Callable[[str, _Found], CallError]:
    """Returns a function that makes an exception. The exception's attributes are fields of the detail."""

    def build(message: str, found: _Found) -> CallError:
        known = found.get(detail, detail())
        return make(message, **{name: getattr(known, field) for name, field in fields.items()})

    return build


_BUILD: dict[type[CallError], Callable[[str, _Found], CallError]] = {
    errors.InvalidArgument: _invalid,
    errors.NotFound: _of_detail(
        errors.NotFound, error_details_pb2.ResourceInfo, kind="resource_type", name="resource_name"
    ),
    errors.AlreadyExists: _already_exists,
    errors.Aborted: _of_detail(errors.Aborted, error_pb2.CurrentAttempt, rollout_id="rollout_id", attempt="attempt"),
    errors.OutOfRange: _of_detail(
        errors.OutOfRange, error_pb2.EventsGone, first_event_number="first_event_number", first_cursor="first_cursor"
    ),
    errors.FailedPrecondition: _precondition,
}
