"""Converts between a dataclass and a protobuf message by the names of their fields.

A field of such a pair is declared in the proto file and in the dataclass, and nowhere else. Other modules convert the
frequent messages (chats, replies, token blocks) by hand, because that is faster.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.wire import times

T = TypeVar("T")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=str)


class Codec(NamedTuple):
    """Converts one field. `read` also gets the path of the field, and raises InvalidArgument with this path."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    name: str = ""
    """The name of the message's field, if it differs from the name in the dataclass."""


JSON_OBJECT = Codec(lambda value: jsontext.render(value) if value else "", jsontext.parse_object)
"""The codec of an object as JSON text; an empty object is not a text."""


class EnumNames(Generic[E]):
    """Converts between names and the numbers of a protobuf enum. `what` names the enum in error messages."""

    def __init__(self, names: Iterable[E], enum: Any, what: str) -> None:
        prefix = enum.keys()[0].removesuffix("UNSPECIFIED")
        self.numbers: dict[E, Any] = {name: enum.Value(prefix + name.upper()) for name in names}
        self.names: dict[int, E] = {number: name for name, number in self.numbers.items()}
        self._what = what

    def read(self, number: int, path: str) -> E:
        """Return a name. Raises InvalidArgument for a number without a name."""
        if number not in self.names:
            raise InvalidArgument(path, f"{number} is not {self._what}")
        return self.names[number]

    def codec(self, default: E | None) -> Codec:
        """Return the codec of an enum field. For a number without a name it returns `default`."""
        return Codec(self.numbers.__getitem__, lambda number, path: self.names.get(number, default))


_CODECS = {
    Duration.DESCRIPTOR.full_name: Codec(times.duration, times.valid_seconds),
    Timestamp.DESCRIPTOR.full_name: Codec(times.timestamp, times.valid_unix),
}
"""The codecs of fields that are messages, by the type of the message. Each Converter adds a codec for its message."""


class Converter(Generic[T, M]):
    """Converts between a dataclass and its message.

    Only enums, messages without a Converter, and fields with a check need a codec. An unset field has the default of
    the dataclass, or is None if the dataclass allows None. Otherwise it becomes the default of its type. A repeated
    field becomes a tuple. `own` are the fields of the dataclass and of the message that the callers convert themselves.

    Raises: TypeError: The message has a field that the dataclass lacks.
    """

    def __init__(self, cls: type[T], message: type[M], own: Sequence[str] = (), /, **codecs: Codec) -> None:
        self._cls, self._message = cls, message
        hints, known = get_type_hints(cls), message.DESCRIPTOR.fields_by_name
        self._write: list[tuple[str, str, Callable[[Any], Any] | None]] = []
        self._required: list[tuple[str, str, Callable[[Any, str], Any] | None]] = []
        self._optional: list[tuple[str, str, Callable[[Any, str], Any] | None, bool]] = []
        for each in fields(cls):  # type: ignore[arg-type]
            name, hint = each.name, hints[each.name]
            if name in own:
                continue
            codec = codecs.get(name) or _codec(known[name], get_origin(hint) in (tuple, Sequence))
            field = (codec and codec.name) or name
            has_default = each.default is not MISSING or each.default_factory is not MISSING
            optional = known[field].has_presence and (has_default or type(None) in get_args(hint))
            read = codec and codec.read
            self._write.append((name, field, codec and codec.write))
            if optional:
                self._optional.append((name, field, read, has_default))
            else:
                self._required.append((name, field, read))
        lacking = set(known) - {field for _, field, _ in self._write} - set(own)
        if lacking:  # otherwise its values would be lost
            of = message.DESCRIPTOR.name
            raise TypeError(f"{cls.__name__} lacks the field {min(lacking)} of {of}; add it there, or to `own`")
        _CODECS[message.DESCRIPTOR.full_name] = Codec(self.to_wire, lambda m, path: self.from_wire(m, f"{path}."))

    def to_wire(self, value: T, **own: Any) -> M:
        """Return the value as a message. `own` are fields of the message."""
        for name, field, write in self._write:
            item = getattr(value, name)
            if item is not None:
                own[field] = write(item) if write else item
        return self._message(**own)

    def from_wire(self, message: Any, path: str = "", **own: Any) -> T:
        """Return the value of a message. The paths in an InvalidArgument begin with `path`.

        `own` are fields of the value.
        """
        for name, field, read in self._required:
            item = getattr(message, field)
            own[name] = read(item, path + field) if read else item
        for name, field, read, has_default in self._optional:
            if message.HasField(field):
                item = getattr(message, field)
                own[name] = read(item, path + field) if read else item
            elif not has_default:
                own[name] = None
        return self._cls(**own)

    def field_of(self, message: Any, name: str, path: str = "") -> T | None:
        """Return the value of the field `name` of another message; None if the field is unset."""
        return self.from_wire(getattr(message, name), f"{path}{name}.") if message.HasField(name) else None


def _codec(field: Any, repeated: bool) -> Codec | None:
    one = _CODECS[field.message_type.full_name] if field.message_type else None
    if not repeated:
        return one
    if one is None:
        return Codec(list, lambda values, path: tuple(values))
    return Codec(
        lambda values: [*map(one.write, values)],
        lambda values, path: tuple(one.read(value, f"{path}[{i}]") for i, value in enumerate(values)),
    )
