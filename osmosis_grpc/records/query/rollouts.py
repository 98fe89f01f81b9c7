"""Reads the rollouts of a journal one after another. Events are read only if a query needs them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from osmosis_grpc.protocol.errors import DataLoss, InvalidArgument
from osmosis_grpc.protocol.types import (
    EventKind,
    RolloutFilter,
    RolloutInfo,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.wire.event import kind_number
from osmosis_grpc.records.reading.journal_info import settled_header, unfinished_info
from osmosis_grpc.storage.journal.open_trails import OpenTrail
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.journal.rows import RolloutRow

PAGE = 200
"""The number of rollouts that are read at once."""


class Journal:
    """A snapshot of the journal in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Open the journal until the stack closes. Raises JournalError."""
        self.reader = Reader.look(folder)
        stack.callback(self.reader.close)
        newest = self.reader.newest_time() if self.reader.in_use(folder) is False else None
        self.now = time.time() if newest is None else newest
        """The current time in Unix seconds, or the time of the newest event if no process uses the folder."""
        self.damaged: set[int] = set()
        """The sequence numbers of rollouts in which a damaged row or event was found."""

    def rollouts(self) -> Iterator["Rollout"]:
        """Yield all rollouts in the order of acceptance, except those with a damaged row."""
        after = 0
        while page := self.reader.rows(None, after, PAGE, RolloutFilter()):
            after = page[-1].sequence
            bad = {row.sequence for row in page if row.wrong()}
            self.damaged |= bad
            running = [row.sequence for row in page if row.end_time is None and row.sequence not in bad]
            trails = self.reader.open_trails(running) if running else {}
            for row in page:
                if row.sequence not in bad:
                    yield Rollout(row, self, trails.get(row.sequence))


class Rollout:
    """One rollout. Damaged values are None."""

    def __init__(self, row: RolloutRow, journal: Journal, trail: OpenTrail | None) -> None:
        """Wrap the row of a rollout. If it is unfinished, `trail` has its events."""
        self.row = row
        self._journal = journal
        self._trail = trail

    @cached_property
    def request(self) -> RolloutRequest | None:
        """The request, without secrets."""
        kind = self._event(self.row.accepted)
        return kind.init.request if isinstance(kind, events.Accepted) else None

    @cached_property
    def outcome(self) -> RolloutOutcome | None:
        """The outcome without tokens; None before the end."""
        kind = self._event(self.row.ended) if self.row.ended else None
        return kind.outcome if isinstance(kind, events.Ended) else None

    @cached_property
    def info(self) -> RolloutInfo:
        """The state. For an unfinished rollout with very many events, the progress time is a lower bound."""
        if self._trail is None:
            return settled_header(self.row)
        info = unfinished_info(self._journal.reader.entry(self.row, "", outcome=False), self._trail.events)
        return replace(info, progress_time=max(info.progress_time or 0.0, self._trail.read_from))

    @property
    def end(self) -> float:
        """The end in Unix seconds or, for an unfinished rollout, `journal.now`."""
        return self._journal.now if self.row.end_time is None else self.row.end_time

    def events(self, *kinds: type[EventKind]) -> list[TrajectoryEvent]:
        """Return the undamaged events of these kinds, by default of all kinds."""
        if self._trail is not None:
            return [event for event in self._trail.events if not kinds or isinstance(event.kind, kinds)]
        trail, sound = self._journal.reader.events_of(self.row, [kind_number(kind) for kind in kinds])
        if not sound:
            self._journal.damaged.add(self.row.sequence)
        return trail

    def _event(self, position: int) -> EventKind | None:
        try:
            return self._journal.reader.event_at(position)
        except (DataLoss, InvalidArgument):
            self._journal.damaged.add(self.row.sequence)
            return None
