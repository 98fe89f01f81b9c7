"""Hostile messages from descriptors: valid ones with something in them that no honest peer sends.

Strategies draw small integers only; what they stand for is made here, so that examples shrink.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from hypothesis import strategies as st

_INTS = {
    Field.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    Field.CPPTYPE_INT64: (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)),
    Field.CPPTYPE_UINT32: (0, 1, 2, 2**31, 2**32 - 1),
    Field.CPPTYPE_UINT64: (0, 1, 2**53 + 1, 2**63, 2**64 - 1),
    Field.CPPTYPE_ENUM: (0, 1, 2, 3, 99, -1, 2**31 - 1),
    Field.CPPTYPE_BOOL: (False, True),
}
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-3, 2.0, 1e308, 1e-320, float("nan"), float("inf"), float("-inf"))
DEPTHS = (1, 255, 256, 257, 1000, 100_000)
TEXTS = (
    "",
    "x",
    "main",
    " ",
    ".",
    "..",
    "a/b",
    "a\\b",
    "../../etc/passwd",
    "%2e%2e",
    "C:x",
    "CON",
    "x" * 256,
    "x" * 257,
    "x" * 5000,
    "\n[INFO] forged",
    "a\0b",
    "\x1b[31m",
    "\u202eabc",
    "\ufeff",
    "\u2028",
    "ﬁle",
    "😀" * 64,
    "\ue000",
    "{}",
    "[]",
    "null",
    "1",
    '""',
    "NaN",
    "1e999",
    "-Infinity",
    '{"a":NaN}',
    '{"a":1,"a":2}',
    '{"a":"\\ud800"}',
    '{"\\udc00":1}',
    '{"a":"\\u0000"}',
    '{"a":' + "9" * 5000 + "}",
    '{"a":9007199254740993}',
    "{",
    "{'a':1}",
    '{"a":1}x',
    *('{"a":' * depth + "1" + "}" * depth for depth in DEPTHS),
    *("[" * depth + "]" * depth for depth in DEPTHS),
    '{"turns":1}',
    '{"role":"user"}',
    '{"content":"both"}',
    '{"messages":[]}',
    "user",
    "assistant",
    "tool",
    "robot",
    "stop",
    "length",
    "COMPLETED",
    "127.0.0.1:1",
    "169.254.169.254:80",
    "unix:/tmp/x",
    "dns://127.0.0.1:5399/a:1",
    "xds:///x",
    "http://127.0.0.1:1",
    "localhost",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-00",
    "key\nvalue",
    "schlüssel",
)
BYTES = (b"", b"\0", b"\xff" * 8, b"\0" * 4, b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"x" * 10_000)
_MANY = 300
_SMALL = 10_000  # bytes of what there may be many of: lists stand in lists, and 300 * 300 * 300 are too many for memory


def hurt(message: Message, draw: Any) -> None:
    """Change one thing somewhere in a message."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = fields[draw(st.integers(0, len(fields) - 1))]
    present = {known.name for known, _ in message.ListFields()}
    if field.message_type is not None and not field.is_repeated:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if draw(st.booleans()) and field.name in present:
            message.ClearField(field.name)
        else:
            hurt(inner, draw)
    elif not field.is_repeated:
        setattr(message, field.name, _value(field, draw))
    else:
        _hurt_list(message, field, draw)


def _hurt_list(message: Message, field: Any, draw: Any) -> None:
    rows = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        name = _value(key, draw)
        if value.message_type is not None:
            hurt(rows[name], draw)
        else:
            rows[name] = _value(value, draw)
        return
    what = draw(st.sampled_from(("change", "add", "drop", "many")))
    if what == "drop":
        message.ClearField(field.name)
    elif field.message_type is not None:
        if what == "add" or not rows:
            rows.add()
        hurt(rows[draw(st.integers(0, len(rows) - 1))], draw)
        if what == "many" and rows[0].ByteSize() < _SMALL:
            rows.extend([rows[0]] * _MANY)
    else:
        value = _value(field, draw)
        small = not isinstance(value, str | bytes) or len(value) < _SMALL
        rows.extend([value] * (_MANY if what == "many" and small else 1))


def _value(field: Any, draw: Any) -> Any:
    if field.cpp_type in _INTS:
        values: tuple[Any, ...] = _INTS[field.cpp_type]
    elif field.cpp_type in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
        values = FLOATS
    else:
        values = BYTES if field.type == Field.TYPE_BYTES else TEXTS
    return values[draw(st.integers(0, len(values) - 1))]


def damaged(data: bytes, draw: Any) -> bytes:
    """Bytes cut off, flipped, put in or doubled somewhere."""
    at = draw(st.integers(0, 2**16)) % (len(data) + 1)  # what is drawn does not hang on the length
    what = draw(st.sampled_from(("cut", "flip", "insert", "double", "tail")))
    if what == "cut":
        return data[:at]
    if what == "flip" and data:
        at %= len(data)
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if what == "double":
        return data[:at] + data[at // 2 :]
    more = draw(st.binary(min_size=1, max_size=12))
    return data[:at] + more + (data[at:] if what == "insert" else b"")


def hostile(template: Message, draw: Any) -> bytes:
    """A message like the template, as bytes: hurt, damaged, with unknown fields, or nothing like it."""
    kind = draw(st.sampled_from(("hurt", "hurt", "hurt", "damaged", "unknown", "random")))
    if kind == "random":
        return draw(st.binary(max_size=200))
    message = type(template)()
    message.CopyFrom(template)
    if kind == "hurt":
        for _ in range(draw(st.integers(1, 3))):
            hurt(message, draw)
    data = message.SerializeToString()
    if kind == "damaged":
        return damaged(data, draw)
    if kind == "unknown":  # field 1,000: a varint, a text, a group that is empty
        return data + draw(st.sampled_from((b"\xc0\x3e\x01", b"\xc2\x3e\x03abc", b"\xc3\x3e\xc4\x3e")))
    return data
