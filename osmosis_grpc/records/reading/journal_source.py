"""Reads rollouts from the journal in one folder, even while a process uses it."""

import asyncio
import contextlib
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from osmosis_grpc.protocol.types import (
    Annotation,
    JournaledRollout,
    RolloutFilter,
    RolloutInfo,
    RolloutRequest,
    ToolDict,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.records.reading.journal_folder import Seen, find_attempt, opened
from osmosis_grpc.records.reading.journal_info import ended_info, settled_header, unfinished_info
from osmosis_grpc.records.reading.source_port import LARGE_PAGE, Events, Source
from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.state_folders import rollout_folder

POLL = 0.2
"""The seconds between two reads of a journal that another process may be writing."""


class _Read(NamedTuple):
    """The events of an attempt that were read, and the position up to which they are complete."""

    rollout_id: str
    attempt: int
    settled: bool
    events: list[TrajectoryEvent]
    position: int
    """The position in the journal before which there are no further events of this attempt."""

    @classmethod
    def of(cls, reader: Reader, entry: JournaledRollout) -> "_Read":
        request = entry.init.request
        found = list(reader.trajectory(request.rollout_id, request.attempt))
        return cls(request.rollout_id, request.attempt, entry.settled, found, reader.last_position())


class FolderInfo(NamedTuple):
    """What is known about a state folder."""

    path: str
    in_use: bool
    """True if a process uses the folder, or if that is unknown."""
    size: int
    """The bytes of its journal."""
    newest: float | None
    """The time of the newest event, in Unix seconds; None if there is none."""


class JournalSource(Source):
    """Reads the journal in a folder, which a process may be using, with the rollouts of all owners."""

    def __init__(self, folder: Path, seen: Seen | None = None) -> None:
        """Read a folder. `seen` is a cache that several sources can share, also on several threads."""
        self.where = f"the state folder {folder}"
        self.folder = folder
        self._seen = seen if seen is not None else Seen()
        self._kept: Reader | None = None
        self._read: _Read | None = None
        """The events of the unfinished rollout that get() returned last. Finding them again would take long."""
        self._ended: JournaledRollout | None = None
        """The ended rollout that get() returned last, which can no longer change."""

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Open the journal once for all reads in the block. They all see the content of this moment."""
        with opened(self.folder) as reader:
            self._kept = reader
            try:
                yield
            finally:
                self._kept = None

    def _opened(self) -> AbstractContextManager[Reader]:
        return opened(self.folder) if self._kept is None else nullcontext(self._kept)

    def attempts(self, rollout_id: str) -> list[int]:
        """Return the numbers of a rollout's attempts. Raises SourceError."""
        with self._opened() as reader:
            return reader.attempts(rollout_id)

    def newest(self, limit: int) -> list[str]:
        """Return the ids of the newest rollouts. Raises SourceError."""
        with self._opened() as reader:
            return reader.newest(limit)

    def position(self) -> int:
        """Return the position of the newest event. Raises SourceError."""
        with self._opened() as reader:
            return reader.last_position()

    def new_events(self, after: int) -> tuple[list[TrajectoryEvent], int]:
        """Return events after a position, and the position to continue from. Raises SourceError."""
        with self._opened() as reader:
            return reader.new_events(after)

    async def as_of(self) -> float | None:
        """See Source."""
        if Reader.in_use(self.folder) is not False:
            return None
        with self._opened() as reader:
            newest = reader.newest_time()
        return time.time() if newest is None else newest

    async def folder_info(self) -> "FolderInfo":
        """Return what is known about the folder. Raises SourceError."""
        with self._opened() as reader:
            size = sum(file.stat().st_size for file in self.folder.glob("journal.db*"))
            return FolderInfo(
                str(self.folder.absolute()), Reader.in_use(self.folder) is not False, size, reader.newest_time()
            )

    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """See Source."""
        rows, more = self.numbered_page(where, int(token or 0), limit=limit, newest_first=newest_first)
        return [info for _, info in rows], str(rows[-1][0]) if more else ""

    def numbered_page(
        self, where: RolloutFilter, after: int, *, limit: int, newest_first: bool
    ) -> tuple[list[tuple[int, RolloutInfo]], bool]:
        """Return the rollouts after a position, the position of each, and whether there are more."""
        rows: list[tuple[int, RolloutInfo]] = []
        with self._opened() as reader:
            while found := reader.rows(None, after, limit + 1, where, newest_first=newest_first):
                for row, info in zip(found, self._seen.infos(reader, found, self.folder), strict=True):
                    after = row.sequence
                    if not where.matches(info, time.time()):
                        continue
                    if len(rows) == limit:
                        return rows, True
                    rows.append((after, info))
        return rows, False

    async def headers(
        self, where: RolloutFilter, *, limit: int, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], bool]:
        """See Source. For settled rollouts, it reads the rows but no events."""
        found: list[RolloutInfo] = []
        after = 0
        with self._opened() as reader:
            while rows := reader.rows(None, after, LARGE_PAGE, where, newest_first=newest_first):
                after = rows[-1].sequence
                settled = {row.sequence: settled_header(row) for row in rows if row.settled and not row.wrong()}
                open_rows = [row for row in rows if row.sequence not in settled]
                infos = self._seen.infos(reader, open_rows, self.folder)
                others = {row.sequence: info for row, info in zip(open_rows, infos, strict=True)}
                matching = {at for at, info in others.items() if where.matches(info, time.time())}
                known = settled | {at: others[at] for at in matching}
                found += [known[row.sequence] for row in rows if row.sequence in known]
                if len(found) > limit:
                    return found[:limit], True
        return found, False

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        from osmosis_grpc.engine.recorded_chats import resolve_references  # lists do not need it

        with self._opened() as reader:
            entry = find_attempt(reader, self.folder, rollout_id, attempt)
            if entry.end_time is None:
                self._read = _Read.of(reader, entry)
                return unfinished_info(entry, self._read.events)
            self._ended = entry
            outcome = entry.outcome and resolve_references(entry.outcome, reader.trajectory)
            return ended_info(replace(entry, outcome=outcome))

    async def request(self, rollout_id: str, attempt: int) -> tuple[RolloutRequest, Sequence[ToolDict]]:
        """See Source. It reads one event, and no outcome."""
        with self._opened() as reader:
            row = reader.row(rollout_id, attempt)
            kind = None if row is None else reader.events(rollout_id, attempt, [row.accepted])[0].kind
        if not isinstance(kind, events.Accepted):
            entry = self._entry(rollout_id, attempt)  # an unknown id, or the newest attempt
            return entry.init.request, entry.tools
        return kind.init.request, kind.tools

    async def annotations(self, rollout_id: str, attempt: int) -> Sequence[Annotation]:
        """See Source. It reads only the events after the end."""
        with self._opened() as reader:
            row = reader.row(rollout_id, attempt)
            if row is None or row.ended is None:
                return ()
            later = array("Q", (at for at in array("Q", row.positions or b"") if at > row.ended))
            found = reader.annotations(rollout_id, attempt, later) if later else ()
            return [event.kind.annotation for event in found if isinstance(event.kind, events.Annotated)]

    async def rollout_folder(self, rollout_id: str, attempt: int) -> Path | None:
        """See Source."""
        return rollout_folder(self.folder, self._entry(rollout_id, attempt).sequence)

    def _entry(self, rollout_id: str, attempt: int) -> JournaledRollout:
        entry = self._ended
        if entry is None or (entry.init.request.rollout_id, entry.init.request.attempt) != (rollout_id, attempt):
            with self._opened() as reader:
                entry = find_attempt(reader, self.folder, rollout_id, attempt)
        return entry

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        read, self._read = self._read, None
        if read is None or (rollout_id, attempt) != (read.rollout_id, read.attempt):
            with self._opened() as reader:
                read = _Read.of(reader, find_attempt(reader, self.folder, rollout_id, attempt))
        for event in read.events:
            if event.event_number > after:
                yield event
        attempt, position, settled = read.attempt, read.position, read.settled
        while follow and not settled:
            await asyncio.sleep(POLL)
            with self._opened() as reader:
                row = reader.row(rollout_id, attempt)
                settled = row is None or bool(row.settled)  # the row is gone if the rollout was dropped
                found, position = reader.new_events(position, rollout_id, attempt)
            for event in found:
                yield event

    async def all_events(self) -> Events:
        """See Source."""
        position = self.position()
        while True:
            found, position = self.new_events(position)
            for event in found:
                yield event
            if not found:
                await asyncio.sleep(POLL)
