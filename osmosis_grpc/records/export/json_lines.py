"""Lines of JSON with NumPy values."""

import json
from typing import Any

import numpy as np

from osmosis_grpc.protocol.errors import InvalidArgument


def json_line(value: Any, *, ascii_only: bool = False) -> str:
    """Return a line with a JSON value, and its end. Arrays are lists. Raises InvalidArgument for what is no JSON.

    With `ascii_only`, the line has no character that is a command for a terminal.
    """
    try:
        line = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=_plain)
        return (line.replace("\x7f", "\\u007f") if ascii_only else line) + "\n"
    except (TypeError, ValueError) as error:
        raise InvalidArgument("outcomes", f"a value is no JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return value
    try:
        return dict(value)  # a read-only mapping
    except (TypeError, ValueError):
        raise TypeError(f"{type(value).__name__} is no JSON") from None
