"""Merges the pages of several workers into one list, in the order of acceptance.

The token of a page has the position of each worker after which its rows go on, such as 0=120/1=98.
"""

import heapq
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.server.servicer import MAX_PAGE_SIZE
from osmosis_grpc.server.workers.together import raise_first, results

ReadPage = Callable[[int, pb.ListRolloutsRequest], Awaitable[pb.ListRolloutsResponse]]
_POSITION = re.compile("([0-9]{1,3})=([0-9]{1,17})")


async def merged_page(workers: Iterable[int], read: ReadPage, request: pb.ListRolloutsRequest) -> Any:
    """Return a page of all workers. `read` returns a page of one of them, with the positions of its rows.

    Raises CallError, also if one worker does not answer, because its rollouts would be missing.
    """
    limit = min(request.page_size or 100, MAX_PAGE_SIZE)
    positions = parse_positions(request.page_token)
    numbers = list(workers)
    parts = []
    for worker in numbers:
        part = pb.ListRolloutsRequest()
        part.CopyFrom(request)
        part.page_token, part.page_size = str(positions.get(worker, 0) or ""), limit
        parts.append(read(worker, part))
    pages = dict(zip(numbers, await results(parts), strict=True))
    raise_first(pages)
    merged = heapq.merge(
        *(_rows(worker, page) for worker, page in pages.items()), key=_accept_time, reverse=request.newest_first
    )
    chosen: list[Any] = []
    for worker, position, row in merged:
        if len(chosen) == limit:
            return pb.ListRolloutsResponse(rollouts=chosen, next_page_token=positions_text(positions))
        chosen.append(row)
        positions[worker] = position
    more = any(page.next_page_token.endswith("+") for page in pages.values())
    return pb.ListRolloutsResponse(rollouts=chosen, next_page_token=positions_text(positions) if more else "")


def parse_positions(token: str) -> dict[int, int]:
    """Return the position of each worker in a token. A plain number is that of worker 0. Raises InvalidArgument."""
    found: dict[int, int] = {}
    for text in token.split("/") if token else ():
        match = _POSITION.fullmatch(text if "=" in text else f"0={text}")
        if match is None:
            raise InvalidArgument("page_token", "is not one of this server's")
        found[int(match[1])] = int(match[2])
    return found


def positions_text(positions: Mapping[int, Any]) -> str:
    """Return the token for the positions of workers."""
    return "/".join(f"{worker}={position}" for worker, position in sorted(positions.items()))


Row = tuple[int, int, Any]


def _rows(worker: int, page: pb.ListRolloutsResponse) -> Iterator[Row]:
    positions = page.next_page_token.removesuffix("+").split()
    return ((worker, int(position), row) for position, row in zip(positions, page.rollouts, strict=True))


def _accept_time(row: Row) -> tuple[int, int]:
    time = row[2].accept_time
    return time.seconds, time.nanos
