"""Finds the images in messages. Pages show only images that are part of a rollout, and load none from elsewhere."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.records.reading.history import History
from osmosis_grpc.records.reading.message_text import mapping, mappings, text_of

TYPES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""The types of images that are shown. SVG is missing, because it can contain scripts."""
DIGEST_CHARS = 32
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a message's content: a text, or an image."""

    text: str
    url: str = ""
    """The data URL of an image; empty for a text."""

    @property
    def digest(self) -> str:
        """The name that the image has in an address."""
        return digest_of(self.url)


def digest_of(url: str) -> str:
    """Return the name that an image has in an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:DIGEST_CHARS]


def parts_of(content: Any) -> list[Part]:
    """Return the parts of a message's content. Join adjacent texts to one part."""
    parts = mappings(content)
    if not any(map(_url, parts)):
        text = text_of(content)
        return [Part(text)] if text else []
    found: list[Part] = []
    for part in parts:
        url = _url(part)
        text = f"image, {len(url) * 3 // 4:,} bytes" if url else text_of([part])
        if not url and found and not found[-1].url:
            found[-1] = Part(f"{found[-1].text}\n{text}")
        else:
            found.append(Part(text, url))
    return found


def image(history: History, contents: Iterable[Any], digest: str) -> tuple[bytes, str] | None:
    """Return the bytes and the type of an image of a rollout, or of other contents; None if there is no such image."""
    for content in (*_contents(history), *contents):
        for part in mappings(content):
            url = _url(part)
            if url and digest_of(url) == digest:
                head, _, text = url.partition(",")
                try:
                    return base64.b64decode(text, validate=True), head.removeprefix("data:").partition(";")[0]
                except binascii.Error:
                    return None
    return None


def _contents(history: History) -> Iterator[Any]:
    for chat in history.chats.values():
        for message in chat.asked.messages:
            yield message.get("content")
        if chat.answered is not None:
            yield chat.answered.response.message.get("content")
    for tool in history.tools:
        if tool.returned is not None and tool.returned.message is not None:
            yield tool.returned.message.get("content")


def _url(part: Any) -> str:
    """Return the data URL of a part that is an image of a known type; empty for any other part."""
    value = part.get("image_url")
    url = value if isinstance(value, str) else mapping(value).get("url")
    source = mapping(part.get("source"))
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    if not isinstance(url, str):
        return ""
    head, _, data = url.partition(",")
    kind, _, rest = head.removeprefix("data:").partition(";")
    known = head.startswith("data:") and kind in TYPES and rest == "base64"
    return url if known and len(data) % 4 == 0 and _BASE64.fullmatch(data) else ""
