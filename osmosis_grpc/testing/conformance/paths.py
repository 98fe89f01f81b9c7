"""Puts a value into nested data, at a path such as `spec.messages[0].extra_json`."""

from collections.abc import Mapping
from typing import Any


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a path such as `spec.messages[0]`. An object at the end of a path without index is merged."""
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    at: Any = data
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = {**at.get(last, {}), **value} if isinstance(value, Mapping) else value
