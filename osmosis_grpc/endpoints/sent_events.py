"""Writes server-sent events whose data is JSON."""

import json
from typing import Any

_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Characters to escape. Readers that use str.splitlines(), such as httpx, take them for line ends."""


def event(data: Any, kind: str = "") -> str:
    """Return an event with the name `kind`, or without a name."""
    text = json.dumps(data, ensure_ascii=False).translate(_ENDS)
    return f"event: {kind}\ndata: {text}\n\n" if kind else f"data: {text}\n\n"
