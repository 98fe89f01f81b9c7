"""Turns any value into JSON for ctx.log_event."""

from collections.abc import Mapping
from typing import Any

from osmosis_grpc.types import jsontext


def loggable(value: Any, levels: int = 32) -> Any:
    """Return a value as JSON. If the value is not JSON, return its repr."""
    try:
        if isinstance(value, Mapping) and levels:
            return {plain_text(str(key)): loggable(item, levels - 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset) and levels:
            return [loggable(item, levels - 1) for item in value]
        if isinstance(value, str):
            return plain_text(value)
        return jsontext.copy(value, "data", 0)
    except Exception:  # the value's own methods may raise anything
        try:
            return plain_text(repr(value))
        except Exception:
            return f"a {type(value).__name__} without a repr"


def plain_text(text: str) -> str:
    """Return a text with a question mark for each unpaired surrogate."""
    return text.encode("utf-8", "replace").decode()
