"""The blobs of message.proto: data URLs of a content part, as bytes instead of base64 text.

A data URL becomes a blob only if base64 of the bytes gives the same text again, so that the receiver gets the sender's
value. Only the values of keys become blobs. The elements of a list stay text.
"""

import re
from binascii import a2b_base64, b2a_base64
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.jsontext import MAX_DEPTH

MIN_URL_CHARS = 1024
"""A shorter data URL stays text."""
CACHED_BYTES = 32 * 1024 * 1024
"""The most bytes of the texts and bytes of data URLs that are kept, so that a history is not decoded for every chat."""
MAX_MIME_CHARS = 255
"""The longest media type with its parameters."""

_SCHEME, _MARK = "data:", ";base64,"
_MIME = re.compile(r"[!-+\--~]+/[!-+\--~]+")  # visible ASCII characters without a comma
_ESCAPES = re.compile(r"~[01]")
_UNESCAPED = {"~0": "~", "~1": "/"}
_DIGEST_BYTES = 32
_TYPED = ("type", "text")
"""The keys of a part that have fields of their own. They are never blobs."""
_MAX_INDEX_CHARS = 9


class _Decoded(NamedTuple):
    """A data URL, decoded."""

    mime_type: str
    data: bytes
    digest: bytes


class _Cache:
    """The newest data URLs. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._urls: OrderedDict[str, _Decoded | None] = OrderedDict()
        self._bytes = 0

    def decode(self, url: str) -> _Decoded | None:
        """Return a data URL decoded; None for one that has to stay text."""
        with self._lock:
            if url in self._urls:
                self._urls.move_to_end(url)
                return self._urls[url]
        decoded = _decode(url)
        with self._lock:
            if url not in self._urls:
                self._urls[url] = decoded
                self._bytes += _size(url, decoded)
            while self._bytes > CACHED_BYTES:
                self._bytes -= _size(*self._urls.popitem(last=False))
        return decoded


_CACHE = _Cache()


def take_blobs(part: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[pb.Blob]]:
    """Return a part without its long data URLs, and these as blobs. Does not change `part`."""
    blobs: list[pb.Blob] = []
    rest: Mapping[str, Any] = _without_urls(part, "", blobs, _TYPED)
    return rest, blobs


def put_blobs(part: dict[str, Any], blobs: Iterable[pb.Blob], field: str) -> None:
    """Put the values of blobs into a part. Raises InvalidArgument with a path that begins with `field`."""
    for index, blob in enumerate(blobs):
        path = f"{field}.blobs[{index}]"
        parent, key = _position(part, blob.path, f"{path}.path")
        parent[key] = _value(blob, path)


def _without_urls(value: Any, pointer: str, blobs: list[pb.Blob], kept: tuple[str, ...] = ()) -> Any:
    """Return an object or a list without its data URLs. Adds them to `blobs`. If there are none, returns `value`."""
    items = value.items() if type(value) is dict else enumerate(value)
    changed = {}
    for key, item in items:
        kind = type(item)
        if kind is dict or kind is list:
            inner = _without_urls(item, f"{pointer}/{_escape(key)}", blobs)
            if inner is not item:
                changed[key] = inner
        elif kind is str and type(key) is str and len(item) >= MIN_URL_CHARS and item.startswith(_SCHEME):
            decoded = None if key in kept else _CACHE.decode(item)
            if decoded is not None:
                blobs.append(
                    pb.Blob(
                        path=f"{pointer}/{_escape(key)}",
                        mime_type=decoded.mime_type,
                        data=decoded.data,
                        sha256=decoded.digest,
                    )
                )
                changed[key] = _TAKEN
    if not changed:
        return value
    if type(value) is list:
        return [changed.get(index, item) for index, item in enumerate(value)]
    found = {key: changed.get(key, item) for key, item in value.items()}
    return {key: item for key, item in found.items() if item is not _TAKEN}


_TAKEN = object()


def _escape(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _decode(url: str) -> _Decoded | None:
    end = url.find(_MARK, len(_SCHEME), len(_SCHEME) + MAX_MIME_CHARS + len(_MARK))
    mime_type, text = url[len(_SCHEME) : end], url[end + len(_MARK) :]
    if end < 0 or not _MIME.fullmatch(mime_type):
        return None
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    if b2a_base64(data, newline=False).decode() != text:
        return None
    return _Decoded(mime_type, data, sha256(data).digest())


def _size(url: str, decoded: _Decoded | None) -> int:
    return len(url) + (0 if decoded is None else len(decoded.data))


def _position(part: dict[str, Any], pointer: str, field: str) -> tuple[dict[str, Any], str]:
    """Return the object and the key that a JSON Pointer names. Raises InvalidArgument unless the key is new there."""
    first, *steps = pointer.split("/", MAX_DEPTH + 1)
    if first or not steps or any("~" in _ESCAPES.sub("", step) for step in steps):
        raise InvalidArgument(field, "is not a JSON Pointer to a key")
    *outer, key = [_ESCAPES.sub(lambda escape: _UNESCAPED[escape[0]], step) for step in steps]
    parent: Any = part
    for step in outer:
        if isinstance(parent, dict) and step in parent:
            parent = parent[step]
        else:
            parent = _element(parent, step) if isinstance(parent, list) else None
    if not isinstance(parent, dict):
        raise InvalidArgument(field, "names no object of the part")
    if parent is part and key in _TYPED:
        raise InvalidArgument(field, f"names the typed key {key!r}; set its field instead")
    if key in parent:
        raise InvalidArgument(field, "names a key that the part has already")
    return parent, key


def _element(values: list[Any], index: str) -> Any:
    """Return the element at an index of a JSON Pointer; None if there is none."""
    known = index.isdecimal() and len(index) <= _MAX_INDEX_CHARS and str(int(index)) == index
    return values[int(index)] if known and int(index) < len(values) else None


def _value(blob: pb.Blob, field: str) -> str:
    source = blob.WhichOneof("source")
    if source is None:
        raise InvalidArgument(f"{field}.data", "is unset, and there is no uri")
    if blob.sha256 and len(blob.sha256) != _DIGEST_BYTES:
        raise InvalidArgument(f"{field}.sha256", f"has {len(blob.sha256)} bytes, not {_DIGEST_BYTES}")
    if source == "uri":
        return blob.uri
    if len(blob.mime_type) > MAX_MIME_CHARS or not _MIME.fullmatch(blob.mime_type):
        raise InvalidArgument(f"{field}.mime_type", "is not a media type, for example image/png")
    if blob.sha256 and sha256(blob.data).digest() != blob.sha256:
        raise InvalidArgument(f"{field}.sha256", "is not the digest of the data")
    return f"{_SCHEME}{blob.mime_type}{_MARK}{b2a_base64(blob.data, newline=False).decode()}"
