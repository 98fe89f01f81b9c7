"""Makes JSON of any value."""

from collections.abc import Mapping
from typing import Any

from osmosis_grpc.types import jsontext


def loggable(value: Any, levels: int = 32) -> Any:
    """Return a value as JSON. If the value is not JSON, return its repr."""
    try:
        if isinstance(value, Mapping) and levels:
            return {sendable(str(key)): loggable(item, levels - 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset) and levels:
            return [loggable(item, levels - 1) for item in value]
        if isinstance(value, str):
            return sendable(value)
        return jsontext.copy(value, "data", 0)
    except Exception:  # the value's own methods may raise anything
        try:
            return sendable(repr(value))
        except Exception:
            return f"a {type(value).__name__} without a repr"


def sendable(text: str) -> str:
    """Return a text without unpaired surrogates."""
    return text.encode("utf-8", "replace").decode()
