"""Reads rollouts from a server's state folder, even while the server uses it.

A server with several workers has a journal in the folder, and one in a subfolder for each further worker. The answers
of all journals are merged.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path

from osmosis_grpc.protocol.types import (
    Annotation,
    RolloutFilter,
    RolloutInfo,
    RolloutRequest,
    ToolDict,
    TrajectoryEvent,
)
from osmosis_grpc.protocol.types.server_info import parse_positions, positions_text
from osmosis_grpc.records.reading.journal_folder import LOOKED_AT, Seen, unknown_rollout
from osmosis_grpc.records.reading.journal_source import POLL, FolderInfo, JournalSource
from osmosis_grpc.records.reading.list_filter import FilterError
from osmosis_grpc.records.reading.source_port import Events, Source
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.storage.state_folders import worker_folders


class FolderSource(Source):
    """Reads a state folder, which a server may be using, with the rollouts of all owners and workers."""

    def __init__(self, folder: Path, seen: Seen | None = None) -> None:
        """Read a folder. `seen` is passed to each JournalSource."""
        self.where = f"the state folder {folder}"
        self.folder = folder
        self._seen = seen if seen is not None else Seen()
        self._first = JournalSource(folder, self._seen)
        self._others: dict[int, JournalSource] = {}

    def journals(self) -> dict[int, JournalSource]:
        """Return the journal of each worker, including workers that were added since the last call."""
        found = {worker: folder for worker, folder in worker_folders(self.folder).items() if (folder / FILE).exists()}
        for worker, folder in found.items():
            if worker not in self._others:
                self._others[worker] = JournalSource(folder, self._seen)
        return {0: self._first} | {worker: self._others[worker] for worker in found}

    def holder(self, rollout_id: str, attempt: int = 0) -> JournalSource:
        """Return the journal that has an attempt of a rollout, by default the newest. Raises SourceError."""
        journals = self.journals()
        if len(journals) == 1:
            return self._first
        found = {worker: journal.attempts(rollout_id) for worker, journal in journals.items()}
        known = {worker: attempts for worker, attempts in found.items() if attempts}
        if not known:
            newest = [name for journal in journals.values() for name in journal.newest(LOOKED_AT)]
            raise unknown_rollout(rollout_id, self.folder, newest)
        having = [worker for worker, attempts in known.items() if attempt in attempts]
        return journals[having[0] if having else max(known, key=lambda worker: max(known[worker]))]

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Open the journals once for all reads in the block. They all see the content of this moment."""
        with ExitStack() as stack:
            for journal in self.journals().values():
                stack.enter_context(journal.snapshot())
            yield

    async def as_of(self) -> float | None:
        """See Source."""
        times = [await journal.as_of() for journal in self.journals().values()]
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None

    async def folder_info(self) -> FolderInfo:
        """Return what is known about the folder. Raises SourceError."""
        infos = [await journal.folder_info() for journal in self.journals().values()]
        times = [info.newest for info in infos if info.newest is not None]
        return FolderInfo(
            infos[0].path,
            any(info.in_use for info in infos),
            sum(info.size for info in infos),
            max(times, default=None),
        )

    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """See Source. The token has the position of each journal, such as 0=120/1=98."""
        try:
            positions = parse_positions(token)
        except ValueError:
            raise FilterError("page", f"{token[:40]!r} is not a page of this list; begin with the first page") from None
        journals = self.journals()
        if len(journals) == 1 and "=" not in token:
            return await self._first.page(where, token, limit=limit, newest_first=newest_first)
        rows: dict[int, list[tuple[int, RolloutInfo]]] = {}
        more = False
        for worker, journal in journals.items():
            after = positions.get(worker, 0)
            rows[worker], left = journal.numbered_page(where, after, limit=limit, newest_first=newest_first)
            more |= left
        merged = heapq.merge(
            *([(worker, at, info) for at, info in found] for worker, found in rows.items()),
            key=lambda row: row[2].accept_time,
            reverse=newest_first,
        )
        chosen: list[RolloutInfo] = []
        for worker, at, info in merged:
            if len(chosen) == limit:
                more = True
                break
            chosen.append(info)
            positions[worker] = at
        return chosen, positions_text(positions) if more else ""

    async def headers(
        self, where: RolloutFilter, *, limit: int, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], bool]:
        """See Source. For settled rollouts, it reads the rows but no events."""
        found = [
            await journal.headers(where, limit=limit, newest_first=newest_first) for journal in self.journals().values()
        ]
        merged = list(heapq.merge(*(rows for rows, _ in found), key=lambda row: row.accept_time, reverse=newest_first))
        return merged[:limit], len(merged) > limit or any(more for _, more in found)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        return await self.holder(rollout_id, attempt).get(rollout_id, attempt)

    async def request(self, rollout_id: str, attempt: int) -> tuple[RolloutRequest, Sequence[ToolDict]]:
        """See Source."""
        return await self.holder(rollout_id, attempt).request(rollout_id, attempt)

    async def annotations(self, rollout_id: str, attempt: int) -> Sequence[Annotation]:
        """See Source."""
        return await self.holder(rollout_id, attempt).annotations(rollout_id, attempt)

    async def rollout_folder(self, rollout_id: str, attempt: int) -> Path | None:
        """See Source."""
        return await self.holder(rollout_id, attempt).rollout_folder(rollout_id, attempt)

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        found = self.holder(rollout_id, attempt).events(rollout_id, attempt, after=after, follow=follow)
        async with aclosing(found) as events:
            async for event in events:
                yield event

    async def all_events(self) -> Events:
        """See Source."""
        positions = {worker: journal.position() for worker, journal in self.journals().items()}
        while True:
            batch: list[TrajectoryEvent] = []
            for worker, journal in self.journals().items():
                found, positions[worker] = journal.new_events(positions.get(worker, 0))
                batch += found
            batch.sort(key=lambda event: event.time)
            for event in batch:
                yield event
            if not batch:
                await asyncio.sleep(POLL)
