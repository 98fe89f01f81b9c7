"""Converts the content of an OpenAI message to ATIF v1.7: a text, or parts of text and images."""

import re
from collections.abc import Mapping
from typing import Any

_IMAGES = {"image/jpeg": (".jpg", ".jpeg"), "image/png": (".png",), "image/gif": (".gif",), "image/webp": (".webp",)}
"""The media types of ATIF, with the ends of the names of such files."""
_DATA = re.compile(r"data:([\w/+.-]+)[;,]")


def content_parts(content: Any) -> tuple[str | list[dict[str, Any]], dict[str, Any]]:
    """Return the content for ATIF, and what it cannot express, for `extra`.

    A part that is neither a text nor an image of a known type is in `extra` under "content_parts", by its index.
    """
    if content is None:
        return "", {}
    if isinstance(content, str):
        return content, {}
    if not isinstance(content, list):
        return "", {"content": content}
    made, left = [], {}
    for index, part in enumerate(content):
        converted = _part(part)
        if converted is None:
            left[str(index)] = part
        else:
            made.append(converted)
    return made, {"content_parts": left} if left else {}


def _part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        return None
    if part.get("type") in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if part.get("type") in ("image_url", "input_image"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        media_type = _media_type(url) if isinstance(url, str) else None
        if media_type is not None:
            return {"type": "image", "source": {"media_type": media_type, "path": url}}
    return None


def _media_type(url: str) -> str | None:
    data = _DATA.match(url)
    if data:
        return data[1] if data[1] in _IMAGES else None
    path = re.split(r"[?#]", url, maxsplit=1)[0].lower()
    return next((name for name, ends in _IMAGES.items() if path.endswith(ends)), None)
