"""message.proto: messages, tool calls, tool schemas, sampling parameters, usage.

Each of them is an object with some typed keys. If a typed key has a value of the expected type, the value is stored in
the key's field. All other keys are stored in `extra_json`. Reading merges the fields and `extra_json`, so no key is
lost.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message as Proto

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.jsontext import MAX_DEPTH, NOTHING
from osmosis_grpc.protocol.types.messages import Message, check_role
from osmosis_grpc.protocol.types.requests import check_params
from osmosis_grpc.protocol.wire.blobs import put_blobs, take_blobs
from osmosis_grpc.protocol.wire.field_conversion import Codec
from osmosis_grpc.protocol.wire.protobuf_encoding import remembered

P = TypeVar("P", bound=Proto)
MAX_ITEMS = 65_536
"""The most items of a list of messages, in which tool calls, parts and blobs count, too. Also the most tools of a list.

A million items would block the event loop for half a minute."""
_INT64 = 2**63
_NUMBERS = (int, float)


def message_to_wire(message: Mapping[str, Any], *, blobs: bool = False) -> pb.Message:
    """Return a message as a protobuf message. The role must have been checked before.

    With `blobs`, long data URLs in its parts become blobs. The receiver must have the feature `blobs`.
    """
    if len(message) == 2 and type(message.get("content")) is str:  # the usual case
        return pb.Message(role=message["role"], text=message["content"])
    out, rest = pb.Message(), {}
    for key, value in message.items():
        kind = type(value)
        if key == "content" and kind is str:
            out.text = value
        elif key == "content" and value is None:
            out.null_content.SetInParent()
        elif key == "content" and kind is list and _fits_content(value):
            out.parts.parts.extend(_part_to_wire(part, blobs=blobs) for part in value)
            out.parts.SetInParent()
        elif key == "tool_calls" and _fits_tool_calls(value):
            out.tool_calls.extend(tool_call_to_wire(call) for call in value)
        else:
            rest[key] = value
    return _object_to_wire(out, rest, _MESSAGE)


def frozen_bytes(messages: Iterable[Message], *, blobs: bool = False) -> list[bytes]:
    """Return the bytes of each message; see message_to_wire(). The messages must not change afterwards."""
    if not blobs:
        return [_text_bytes(message) for message in messages]
    return [_blob_bytes(m) if type(m.get("content")) is list else _text_bytes(m) for m in messages]


@remembered
def _text_bytes(message: Message) -> bytes:
    return message_to_wire(message).SerializeToString()


@remembered
def _blob_bytes(message: Message) -> bytes:
    return message_to_wire(message, blobs=True).SerializeToString()


def _part_to_wire(part: Mapping[str, Any], *, blobs: bool) -> pb.ContentPart:
    rest, taken = take_blobs(part) if blobs else (part, ())
    return _object_to_wire(pb.ContentPart(blobs=taken), rest, _PART)


def _part_from_wire(part: pb.ContentPart, field: str) -> dict[str, Any]:
    out = _object_from_wire(part, _PART, field)
    if part.blobs:
        put_blobs(out, part.blobs, field)
    return out


def message_from_wire(message: pb.Message, field: str, *, any_role: bool = False) -> Message:
    """Return a message as a dict. Raises InvalidArgument naming the path below `field`.

    `any_role` is that of check_role(). It is for journals and reports, because legacy trainers accept any role.
    """
    check_role(message.role, field, any_role)
    out: Message = {"role": intern(message.role)}
    content = message.WhichOneof("content")
    if content == "text":
        out["content"] = message.text
    elif content == "parts":
        parts = message.parts.parts
        _check_items(_part_items(parts), f"{field}.parts.parts")
        out["content"] = [_part_from_wire(part, f"{field}.parts.parts[{i}]") for i, part in enumerate(parts)]
    elif content == "null_content":
        out["content"] = None
    if message.tool_calls:
        _check_items(len(message.tool_calls), f"{field}.tool_calls")
        calls = enumerate(message.tool_calls)
        out["tool_calls"] = [tool_call_from_wire(call, f"{field}.tool_calls[{i}]") for i, call in calls]
    if message.HasField("tool_call_id"):
        out["tool_call_id"] = message.tool_call_id
    if message.HasField("name"):
        out["name"] = message.name
    return _merge(out, message.extra_json, field, _MESSAGE) if message.extra_json else out


def messages_from_wire(messages: Sequence[pb.Message], field: str, *, any_role: bool = False) -> list[Message]:
    """Return messages as dicts. Raises InvalidArgument for more than MAX_ITEMS items."""
    items = len(messages)
    for message in messages:
        items += len(message.tool_calls)
        if message.WhichOneof("content") == "parts":
            items += _part_items(message.parts.parts)
    _check_items(items, field)
    return [message_from_wire(message, f"{field}[{i}]", any_role=any_role) for i, message in enumerate(messages)]


def _part_items(parts: Sequence[pb.ContentPart]) -> int:
    return len(parts) + sum(len(part.blobs) for part in parts)


def _check_items(count: int, field: str) -> None:
    if count > MAX_ITEMS:
        raise InvalidArgument(field, f"have {count} items, more than {MAX_ITEMS}")


def tool_call_to_wire(call: Mapping[str, Any]) -> pb.ToolCall:
    """Return a tool call as a message."""
    return _nested_to_wire(pb.ToolCall(), call, _CALL, _FUNCTION_CALL)


def tool_call_from_wire(call: pb.ToolCall, field: str) -> dict[str, Any]:
    """Return a tool call as a dict."""
    return _nested_from_wire(call, _CALL, _FUNCTION_CALL, field)


def tool_to_wire(tool: Mapping[str, Any]) -> pb.Tool:
    """Return a tool schema as a message."""
    function = tool.get("function")
    if type(function) is not dict or "parameters" not in function:
        return _nested_to_wire(pb.Tool(), tool, _TOOL, _FUNCTION)
    rest = {key: value for key, value in function.items() if key != "parameters"}
    out = _nested_to_wire(pb.Tool(), {**tool, "function": rest}, _TOOL, _FUNCTION)
    out.function.parameters_json = jsontext.render(function["parameters"])
    return out


def tool_from_wire(tool: pb.Tool, field: str) -> dict[str, Any]:
    """Return a tool schema as a dict."""
    out = _nested_from_wire(tool, _TOOL, _FUNCTION, field)
    if tool.function.HasField("parameters_json"):
        path = f"{field}.function.parameters_json"
        parameters = jsontext.parse(tool.function.parameters_json, path, _FUNCTION.levels - 1)
        out["function"]["parameters"] = parameters
    return out


def tools_from_wire(tools: Sequence[pb.Tool], field: str) -> list[dict[str, Any]]:
    """Return tool schemas as dicts. Raises InvalidArgument for more than MAX_ITEMS."""
    _check_items(len(tools), field)
    return [tool_from_wire(tool, f"{field}[{i}]") for i, tool in enumerate(tools)]


TOOLS = Codec(lambda tools: [tool_to_wire(tool) for tool in tools], tools_from_wire)
"""The codec of a list of tool schemas."""


def params_to_wire(params: Mapping[str, Any]) -> pb.SamplingParams:
    """Return sampling parameters as a message. Raises InvalidArgument naming a parameter that is out of bounds."""
    check_params(params, "sampling")
    return _object_to_wire(pb.SamplingParams(), params, _PARAMS, check="sampling")


def params_from_wire(params: pb.SamplingParams, field: str) -> dict[str, Any]:
    """Return sampling parameters as a dict. Raises InvalidArgument naming a parameter that is out of bounds."""
    single: Any = [key for key in _PARAMS.fields if key != "stop"]
    out = {key: getattr(params, key) for key in single if params.HasField(key)}
    if params.stop:
        out["stop"] = list(params.stop)
    out = _merge(out, params.extra_json, field, _PARAMS)
    check_params(out, field)
    return out


def usage_to_wire(usage: Mapping[str, Any]) -> pb.Usage:
    """Return token counts as a message."""
    return _object_to_wire(pb.Usage(), usage, _USAGE)


def usage_from_wire(usage: pb.Usage, field: str) -> dict[str, Any]:
    """Return token counts as a dict. Raises InvalidArgument for a negative count."""
    out = _object_from_wire(usage, _USAGE, field)
    for key in _USAGE.fields:
        count = out.get(key)
        if isinstance(count, _NUMBERS) and count < 0:
            raise InvalidArgument(f"{field}.{key}", "is negative")
    return out


def _is_int64(value: object) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= 2**53)


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_object(value: object) -> bool:
    return type(value) is dict


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _any(_value: object) -> bool:
    return True


def _fits_content(value: Any) -> bool:
    return value is None or type(value) is str or (type(value) is list and all(map(_is_object, value)))


def _fits_tool_calls(value: Any) -> bool:
    return type(value) is list and bool(value) and all(map(_is_object, value))


def _fits_stop(value: Any) -> bool:
    return type(value) is list and bool(value) and all(map(_is_text, value))


class _Kind(NamedTuple):
    """A kind of object."""

    levels: int
    """The most levels of an object, itself included. Each key of a message and each tool has at most 256 levels."""
    fields: Mapping[str, Callable[[Any], bool]]
    """The typed keys, each with a function that returns whether a value fits the key's field."""
    elsewhere: Mapping[str, Callable[[Any], bool]] = NOTHING
    """The typed keys that have code of their own, in the same form."""


_MESSAGE = _Kind(
    MAX_DEPTH + 1,
    {"role": _any, "tool_call_id": _is_text, "name": _is_text},
    {"content": _fits_content, "tool_calls": _fits_tool_calls},
)
_PART = _Kind(MAX_DEPTH - 1, dict.fromkeys(("type", "text"), _is_text))
_CALL = _Kind(MAX_DEPTH - 1, dict.fromkeys(("id", "type"), _is_text), {"function": _is_object})
_FUNCTION_CALL = _Kind(MAX_DEPTH - 2, dict.fromkeys(("name", "arguments"), _is_text))
_TOOL = _Kind(MAX_DEPTH, {"type": _is_text}, {"function": _is_object})
_FUNCTION = _Kind(MAX_DEPTH - 1, dict.fromkeys(("name", "description"), _is_text), {"parameters": _any})
_USAGE = _Kind(MAX_DEPTH, dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _is_int64))
_NUMERIC = {"temperature": _is_number, "top_p": _is_number, "max_tokens": _is_int64, "seed": _is_int64}
_PARAMS = _Kind(MAX_DEPTH, {**_NUMERIC, "logprobs": _is_flag, "stop": _fits_stop})


def _object_to_wire(out: P, value: Mapping[str, Any], kind: _Kind, check: str = "") -> P:
    """Set the typed fields, and put all other keys into extra_json.

    If `check` is a field's name, the other keys are checked first, and InvalidArgument names that field.
    """
    fields, extra = kind.fields, {}
    for key, item in value.items():
        if key not in fields or not fields[key](item):
            extra[key] = item
        elif type(item) is list:
            getattr(out, key).extend(item)
        else:
            setattr(out, key, item)
    if extra:
        out.extra_json = jsontext.render(jsontext.copy(extra, check) if check else extra)  # type: ignore[attr-defined]
    return out


def _object_from_wire(message: Any, kind: _Kind, field: str) -> dict[str, Any]:
    out = {key: getattr(message, key) for key in kind.fields if message.HasField(key)}
    return _merge(out, message.extra_json, field, kind) if message.extra_json else out


def _nested_to_wire(out: P, value: Mapping[str, Any], outer: _Kind, inner: _Kind) -> P:
    function = value.get("function")
    if type(function) is dict:
        _object_to_wire(out.function, function, inner).SetInParent()  # type: ignore[attr-defined]
        value = {key: item for key, item in value.items() if key != "function"}
    return _object_to_wire(out, value, outer)


def _nested_from_wire(message: Any, outer: _Kind, inner: _Kind, field: str) -> dict[str, Any]:
    out = _object_from_wire(message, outer, field)
    if message.HasField("function"):
        if "function" in out:
            raise InvalidArgument(f"{field}.extra_json", "repeats the typed key 'function'")
        out["function"] = _object_from_wire(message.function, inner, f"{field}.function")
    return out


def _merge(out: dict[str, Any], extra_json: str, field: str, kind: _Kind) -> dict[str, Any]:
    """Add the keys of `extra_json`. Raises InvalidArgument for a typed key that belongs in its own field."""
    for key, value in jsontext.parse_object(extra_json, f"{field}.extra_json", kind.levels).items():
        if key in out:
            raise InvalidArgument(f"{field}.extra_json", f"repeats the typed key {key!r}")
        fits = kind.fields.get(key) or kind.elsewhere.get(key)
        if fits is not None and fits(value):
            raise InvalidArgument(f"{field}.extra_json", f"has the typed key {key!r}; set its field instead")
        out[key] = value
    return out
