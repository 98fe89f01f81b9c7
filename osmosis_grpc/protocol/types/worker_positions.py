"""The token of a list of several workers. It has the position in the list of each worker, such as 0=120/1=98."""

import re
from collections.abc import Mapping
from typing import Any

_POSITION = re.compile("([0-9]{1,3})=([0-9]{1,17})")


def parse_positions(token: str) -> dict[int, int]:
    """Return the position of each worker. A plain number is that of worker 0. Raises ValueError."""
    found: dict[int, int] = {}
    for text in token.split("/") if token else ():
        match = _POSITION.fullmatch(text if "=" in text else f"0={text}")
        if match is None:
            raise ValueError(f"{token!r:.100} is not the token of a page")
        found[int(match[1])] = int(match[2])
    return found


def positions_text(positions: Mapping[int, Any]) -> str:
    """Return the token for the positions of workers."""
    return "/".join(f"{worker}={position}" for worker, position in sorted(positions.items()))
