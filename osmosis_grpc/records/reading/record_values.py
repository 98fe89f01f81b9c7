"""Converts values of osmosis_grpc.protocol.types to JSON."""

import base64
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import jsontext


def plain(value: Any, *, without: frozenset[str] = frozenset()) -> Any:
    """Convert a value to JSON. Dataclasses become objects, arrays become lists, and bytes become base64.

    Fields named in `without` are left out, as are fields hidden from the repr, which are secrets and serialized forms.
    A float that is not finite becomes null.
    """
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.repr and field.name not in without]
        return {name: plain(getattr(value, name), without=without) for name in names}
    if isinstance(value, jsontext.Unparsed):
        return plain(value.value(), without=without)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item, without=without) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), without=without)
    if isinstance(value, list | tuple):
        return [plain(item, without=without) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value if isinstance(value, str | int | bool) or value is None else str(value)
