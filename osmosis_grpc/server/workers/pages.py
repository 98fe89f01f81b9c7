"""Merges the pages of several workers into one list, in the order of acceptance."""

import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.worker_positions import parse_positions, positions_text
from osmosis_grpc.server.servicer import MAX_PAGE_SIZE
from osmosis_grpc.server.workers.siblings import raise_first, results

ReadPage = Callable[[int, pb.ListRolloutsRequest], Awaitable[pb.ListRolloutsResponse]]


async def merged_page(workers: Iterable[int], read: ReadPage, request: pb.ListRolloutsRequest) -> Any:
    """Return a page of all workers. `read` returns a page of one of them, with the positions of its rows.

    Raises CallError, also if one worker does not answer, because its rollouts would be missing.
    """
    limit = min(request.page_size or 100, MAX_PAGE_SIZE)
    try:
        positions = parse_positions(request.page_token)
    except ValueError:
        raise InvalidArgument("page_token", "is not one of this server's") from None
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


Row = tuple[int, int, Any]


def _rows(worker: int, page: pb.ListRolloutsResponse) -> Iterator[Row]:
    positions = page.next_page_token.removesuffix("+").split()
    return ((worker, int(position), row) for position, row in zip(positions, page.rollouts, strict=True))


def _accept_time(row: Row) -> tuple[int, int]:
    time = row[2].accept_time
    return time.seconds, time.nanos
