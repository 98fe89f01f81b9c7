"""Merges the answers of several workers: pages into one list, in the order of acceptance, and event streams."""

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol.errors import CallError, InvalidArgument
from osmosis_grpc.protocol.types.server_info import parse_positions, positions_text
from osmosis_grpc.server.servicer import MAX_PAGE_SIZE
from osmosis_grpc.server.workers.siblings import raise_first, results
from osmosis_grpc.supervise import OnFailure, Supervisor, job

ReadPage = Callable[[int, pb.ListRolloutsRequest], Awaitable[pb.ListRolloutsResponse]]


async def merged_page(workers: Iterable[int], read: ReadPage, request: pb.ListRolloutsRequest) -> Any:
    """Return a page of all workers. `read` returns a page of one of them, with the positions of its rows.

    Raises CallError, also if only one worker does not answer: without its rollouts the list would be wrong.
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


PUMP = job("server.read_worker_events", OnFailure.REPORT)
WAITING = 64
"""How many events a merged stream buffers for its reader before it stops reading from the workers."""
_CURSOR = re.compile("([0-9]{1,3})=(.+)")

Open = Callable[[int, pb.StreamEventsRequest], AsyncGenerator[pb.StreamEventsResponse, None]]


async def merged_events(
    workers: Iterable[int], read: Open, request: pb.StreamEventsRequest, supervisor: Supervisor
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    """Yield the events of all workers. `read` opens the stream of one of them.

    The events of one worker keep their order. Nothing is yielded before every worker has answered, because each cursor
    contains the positions of all workers. Raises the first CallError of a worker.
    """
    numbers = list(workers)
    cursors = parse_cursors(request.cursor)
    found: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(WAITING)
    begun = asyncio.Event()

    async def pump(worker: int) -> None:
        part = pb.StreamEventsRequest(cursor=cursors.get(worker, ""), from_now=request.from_now)
        try:
            async with aclosing(read(worker, part)) as stream:
                async for response in stream:
                    await found.put((worker, response))
                    await begun.wait()  # the first answer has no event
        except CallError as error:
            await found.put((worker, error))

    failed: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failed.append(error)
        with suppress(asyncio.QueueFull):  # the reader has items to wake up for, and then checks `failed`
            found.put_nowait((-1, error))

    tasks = [supervisor.start(PUMP, partial(pump, worker), fail) for worker in numbers]
    known: dict[int, str] = {}
    try:
        while True:
            worker, response = await found.get()
            if failed or isinstance(response, BaseException):
                raise failed[0] if failed else response
            known[worker] = response.cursor
            if len(known) == len(numbers):
                begun.set()
                response.cursor = positions_text(known)
                yield response
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parse_cursors(cursor: str) -> dict[int, str]:
    """Return the cursor of each worker. Read the cursor of a one-process server as that of worker 0."""
    found: dict[int, str] = {}
    for text in cursor.split("/") if cursor else ():
        match = _CURSOR.fullmatch(text if "=" in text else f"0={text}")
        if match is None:
            raise InvalidArgument("cursor", "is not one of this server's")
        found[int(match[1])] = match[2]
    return found
