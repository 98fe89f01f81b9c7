"""The little of protobuf's encoding that is written and read by hand: tags, lengths, varints."""

LENGTH_DELIMITED = 2


def head(number: int, length: int) -> bytes:
    """What stands before a length-delimited field: its tag and its length. Numbers below 16."""
    if length < 0x80:
        return bytes((number << 3 | LENGTH_DELIMITED, length))
    out = bytearray((number << 3 | LENGTH_DELIMITED,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
