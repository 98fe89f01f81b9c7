"""Writes server-sent events whose data is JSON."""

import json
from typing import Any

_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Readers that split a stream with str.splitlines(), as httpx does, take these characters for line ends."""


def event(data: Any, kind: str = "") -> str:
    """Return an event. If `kind` is empty, the event has no name."""
    text = json.dumps(data, ensure_ascii=False).translate(_ENDS)
    return f"event: {kind}\ndata: {text}\n\n" if kind else f"data: {text}\n\n"
