"""Reads the rollouts of a journal one at a time, for the rows of the views. It keeps only a few of them in memory."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

from osmosis_grpc.protocol.errors import DataLoss, InvalidArgument
from osmosis_grpc.protocol.types import EventKind, RolloutInfo, RolloutOutcome, RolloutRequest, TrajectoryEvent, events
from osmosis_grpc.protocol.wire.event import kind_number
from osmosis_grpc.records.reading.journal_info import unfinished_info
from osmosis_grpc.storage.journal.event_reader import EventReader
from osmosis_grpc.storage.journal.open_trails import OpenTrail
from osmosis_grpc.storage.journal.rows import RolloutRow

OPEN_PAGE = 200
"""The events of this many unfinished rollouts are read at once."""
KEPT = 8
"""The number of rollouts in memory. A query that joins views asks for the same rollout again and again."""


class RolloutFacts:
    """One rollout. Each fact is read when it is first used. A fact that is damaged is None."""

    def __init__(self, row: RolloutRow, journal: "JournalFacts") -> None:
        self.row = row
        self._journal = journal

    @cached_property
    def request(self) -> RolloutRequest | None:
        """The request, without secrets."""
        kind = self._journal.event(self.row, self.row.accepted)
        return kind.init.request if isinstance(kind, events.Accepted) else None

    @cached_property
    def outcome(self) -> RolloutOutcome | None:
        """The outcome, without tokens; None before the end."""
        kind = self._journal.event(self.row, self.row.ended) if self.row.ended else None
        return kind.outcome if isinstance(kind, events.Ended) else None

    @cached_property
    def info(self) -> RolloutInfo | None:
        """The state of an unfinished rollout; None after the end."""
        return self._journal.info(self.row) if self.row.end_time is None else None

    @property
    def end(self) -> float:
        """The end in Unix seconds. For an unfinished rollout, it is now, or the newest event of a stopped server."""
        return self._journal.now if self.row.end_time is None else self.row.end_time

    def events(self, kinds: Sequence[type[EventKind]]) -> list[TrajectoryEvent]:
        """Return its events of these kinds, or all of them. Leaves damaged events out."""
        return self._journal.events(self.row, kinds)


class JournalFacts:
    """The rollouts of a journal by their sequence."""

    def __init__(self, reader: EventReader, folder: Path) -> None:
        self._reader = reader
        self._folder = folder
        self._open: dict[int, OpenTrail] = {}
        self.damaged: set[int] = set()
        """The sequences of the rollouts with a damaged row or event."""
        self.rollout = lru_cache(KEPT)(self._read)
        """Return the rollout with a sequence; None if its row is damaged, or the server has dropped it since."""

    @cached_property
    def now(self) -> float:
        """The present time in Unix seconds, or the time of the newest event if no process uses the folder."""
        newest = self._reader.newest_time() if self._reader.in_use(self._folder) is False else None
        return time.time() if newest is None else newest

    def _read(self, sequence: int) -> RolloutFacts | None:
        row = self._reader.row_at(sequence)
        if row is not None and row.wrong():
            self.damaged.add(sequence)
            return None
        return RolloutFacts(row, self) if row is not None else None

    def event(self, row: RolloutRow, position: int) -> EventKind | None:
        """Return the event of a rollout at a position; None if it is damaged."""
        try:
            return self._reader.event_at(position)
        except (DataLoss, InvalidArgument):
            self.damaged.add(row.sequence)
            return None

    def events(self, row: RolloutRow, kinds: Sequence[type[EventKind]]) -> list[TrajectoryEvent]:
        """Return the events of a rollout of these kinds, or of all without `kinds`. Leaves damaged events out."""
        if row.end_time is None:
            trail = self._trail(row).events
            return [event for event in trail if not kinds or isinstance(event.kind, tuple(kinds))]
        found, sound = self._reader.events_of(row, [kind_number(kind) for kind in kinds])
        if not sound:
            self.damaged.add(row.sequence)
        return found

    def info(self, row: RolloutRow) -> RolloutInfo:
        """Return the state of an unfinished rollout. Its progress time is a lower bound if its events are many."""
        trail = self._trail(row)
        info = unfinished_info(self._reader.entry(row, "", outcome=False), trail.events)
        return replace(info, progress_time=max(info.progress_time or 0.0, trail.read_from))

    def _trail(self, row: RolloutRow) -> OpenTrail:
        """Return the events of an unfinished rollout. Reads those of the next rollouts, too."""
        if row.sequence not in self._open:
            self._open = self._reader.open_trails(self._reader.unfinished(row.sequence, OPEN_PAGE))
        return self._open.get(row.sequence, OpenTrail([], 0.0))
