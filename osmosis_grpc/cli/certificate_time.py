"""Reads from a certificate when it expires. Python's ssl module has no public function for that."""

import calendar
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18
"""Tags of the DER encoding."""


def expiry(path: Path) -> float:
    """Return when the first certificate of a PEM file expires, in Unix seconds. Raises OSError and ValueError."""
    text = path.read_text(encoding="ascii")
    if _BEGIN not in text or _END not in text:
        raise ValueError("it has no certificate in PEM")
    pem = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
    try:
        (certificate,) = _parts(ssl.PEM_cert_to_DER_cert(pem))
        signed = next(_parts(certificate[1]))
        fields = [field for field in _parts(signed[1]) if field[0] != _VERSION]
        _, _, _, validity, *_ = fields  # after the serial number, the algorithm and the issuer
        _, (kind, end) = _parts(validity[1])
        form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[kind]
        return calendar.timegm(time.strptime(end.decode(), form))
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise ValueError(f"its certificate cannot be read: {error!r}") from None


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each value in DER."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        yield tag, data[at : at + size]
        at += size
