"""The images, videos and sounds of a conversation, as bytes.

In OpenAI's format, a content part has its medium under the key that its type names. This is also the form of media that
came as blobs of message.proto: {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}.
"""

from binascii import a2b_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message


class Modality(StrEnum):
    """The kind of a medium."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One medium of a prompt: either `data`, or the `url` from which the model server reads it."""

    modality: Modality
    mime_type: str = ""
    """For example image/png; empty if it is unknown."""
    data: bytes = b""
    url: str = ""


MODALITIES = {
    "image": Modality.IMAGE,
    "image_url": Modality.IMAGE,
    "input_image": Modality.IMAGE,
    "video": Modality.VIDEO,
    "video_url": Modality.VIDEO,
    "audio_url": Modality.AUDIO,
    "input_audio": Modality.AUDIO,
}


def media_of(messages: Iterable[Message]) -> tuple[Media, ...]:
    """Return the media of all messages, in order. Raises InvalidArgument for a media part without a medium."""
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping) and part.get("type") in MODALITIES:
                found.append(medium(part, f"messages[{number}].content[{index}]"))
    return tuple(found)


def medium(part: Mapping[str, Any], field: str) -> Media:
    """Return the medium of a content part. Raises InvalidArgument with a path that begins with `field`."""
    kind = part["type"]
    value = part.get(kind)
    if kind == "input_audio" and isinstance(value, Mapping) and isinstance(value.get("data"), str):
        data = _decoded(value["data"], f"{field}.{kind}.data")
        return Media(modality=Modality.AUDIO, mime_type=f"audio/{value.get('format', 'wav')}", data=data)
    if kind == "input_image":
        value = part.get("image_url")
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str) or not url:
        raise InvalidArgument(f"{field}.{kind}", f'is not a URL; write {{"type": {kind!r}, {kind!r}: {{"url": URL}}}}')
    if not url.startswith("data:"):
        return Media(modality=MODALITIES[kind], url=url)
    head, mark, text = url.removeprefix("data:").partition(";base64,")
    if not mark:
        raise InvalidArgument(f"{field}.{kind}", "is a data URL without ;base64,")
    return Media(modality=MODALITIES[kind], mime_type=head, data=_decoded(text, f"{field}.{kind}"))


def _decoded(text: str, field: str) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidArgument(field, f"is not base64: {error}") from None
