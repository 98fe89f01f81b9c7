"""Converts protobuf messages to plain data and back. The data are dicts with the field names of the proto files.

A `Status` and the details of a refused call become one flat dict:
{code: NAME, reason, domain, message, fields: [...], retry_seconds, details: {NAME: {...}}}.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import error_pb2
from osmosis_grpc.testing.raw import detail_of

Data = dict[str, Any]


class CaseError(ValueError):
    """A case is wrong, so it cannot be read or run. This says nothing about the side under test."""


def from_data(kind: type[Message], data: Mapping[str, Any]) -> Any:
    """Return a message of a kind. Raises CaseError if the data does not fit."""
    try:
        return json_format.ParseDict(_with_statuses(data), kind())
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise CaseError(f"{kind.DESCRIPTOR.name}: {error}") from None


def check_fields(kind: Any, expected: Mapping[str, Any]) -> None:
    """Check that a kind of message has the expected fields. Raises CaseError for a field that it lacks."""
    for name, value in expected.items():
        if name.startswith("$") or kind.full_name == error_pb2.Status.DESCRIPTOR.full_name:
            return
        field = kind.fields_by_name.get(name)
        if field is None:
            names = ", ".join(kind.fields_by_name)
            raise CaseError(f"{kind.name} has no field {name}; it has {names}")
        inner = field.message_type
        if inner is not None and inner.file.package == kind.file.package and not inner.GetOptions().map_entry:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Mapping):
                    check_fields(inner, each)


def to_data(message: Message, *, defaults: bool = True) -> Data:
    """Return a message as data. With `defaults`, include unset fields that have no presence."""
    if message.DESCRIPTOR.full_name == error_pb2.Status.DESCRIPTOR.full_name:
        return status_data(message)
    made: Data = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=defaults
    )
    _flatten(message, made)
    return made


def status_data(status: Any) -> Data:
    """Return a google.rpc.Status, or a Status of the protocol, as data."""
    info = detail_of(status, error_details_pb2.ErrorInfo)
    retry = detail_of(status, error_details_pb2.RetryInfo)
    bad = detail_of(status, error_details_pb2.BadRequest)
    details = {}
    for kind in (error_pb2.CurrentAttempt, error_pb2.SpecDiffers, error_pb2.EventsGone, error_pb2.UnknownChat):
        if (detail := detail_of(status, kind)) is not None:
            details[kind.DESCRIPTOR.name] = to_data(detail)
    return {
        "code": code_name(status.code),
        "reason": info.reason if info else "",
        "domain": info.domain if info else "",
        "message": status.message,
        "fields": [violation.field for violation in bad.field_violations] if bad else [],
        "retry_seconds": retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
        "details": details,
    }


def code_name(code: int) -> str:
    """Return the name of a google.rpc.Code."""
    return str(code_pb2.Code.Name(code)) if code in code_pb2.Code.values() else str(code)


def code_number(name: str) -> int:
    """Return the number of a google.rpc.Code. Raises CaseError for an unknown name."""
    try:
        return int(code_pb2.Code.Value(name))
    except ValueError:
        raise CaseError(f"{name} is not the name of a status") from None


def status_message(data: str | Mapping[str, Any]) -> error_pb2.Status:
    """Return a status to send, given as a name or as {code, reason, message, retry_seconds, unknown_chat}."""
    given: Mapping[str, Any] = {"code": data} if isinstance(data, str) else data
    status = error_pb2.Status(code=code_number(given["code"]), message=given.get("message", "from the suite"))
    info = error_details_pb2.ErrorInfo(reason=given.get("reason", given["code"]), domain="osmosis.rollout")
    status.details.add().Pack(info)
    if "retry_seconds" in given:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(given["retry_seconds"] * 1e9))
        status.details.add().Pack(retry)
    if "unknown_chat" in given:
        status.details.add().Pack(from_data(error_pb2.UnknownChat, given["unknown_chat"]))
    return status


def _with_statuses(data: Any) -> Any:
    """Replace the short statuses in data by whole ones. A short one is a key `status` with a name, or with a `code`."""
    if isinstance(data, Mapping):
        return {
            key: json_format.MessageToDict(status_message(value), preserving_proto_field_name=True)
            if key == "status" and _is_short(value)
            else _with_statuses(value)
            for key, value in data.items()
        }
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [_with_statuses(each) for each in data]
    return data


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return value in code_pb2.Code.keys()  # noqa: SIM118 - an enum wrapper is not a dict
    return isinstance(value, Mapping) and isinstance(value.get("code"), str)


def _flatten(message: Message, data: Data) -> None:
    """Replace each Status in `data`, which is `message` as data, by its flat form."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.message_type.full_name == error_pb2.Status.DESCRIPTOR.full_name:
            data[field.name] = status_data(value)
        elif field.message_type.file.package == error_pb2.DESCRIPTOR.package:
            if isinstance(value, Message):
                _flatten(value, data[field.name])
            else:
                for each, its in zip(value, data[field.name], strict=True):
                    _flatten(each, its)
