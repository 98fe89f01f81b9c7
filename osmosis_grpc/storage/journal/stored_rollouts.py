"""The half of the SQLite journal that reads: open rollouts from memory, the others from the file.

It reads on the event loop or on another thread. Errors of reading become Unavailable.
"""

import functools
import json
import logging
import sqlite3
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from osmosis_grpc.engine.journal_port import Journal, Trajectories
from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import JournaledRollout, RolloutFilter, TrajectoryEvent
from osmosis_grpc.protocol.types.rollout_info import EVERY
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.credentials import Secrets
from osmosis_grpc.storage.journal.open_rollouts import Key, OpenRollout, OpenRollouts
from osmosis_grpc.storage.journal.reader import Reader
from osmosis_grpc.storage.sqlite.database import connect
from osmosis_grpc.supervise import System

log = logging.getLogger(__name__)

R = TypeVar("R")


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn an error of reading into Unavailable, which allows the caller to retry."""
    try:
        yield
    except (sqlite3.Error, OSError, InvalidArgument, schema.JournalError) as error:
        raise Unavailable(f"the journal cannot be read: {error}", retry_after=5.0) from error


async def read_on_thread(system: System, path: Path, read: Callable[[Reader], R]) -> R:
    """Call `read` on another thread, and return its result. Raises Unavailable.

    `read` gets a Reader with a connection of its own.
    """

    def reading() -> R:
        with closing(connect(path)) as database:
            database.execute("PRAGMA query_only = 1")
            reader = Reader(database)
            with reader.snapshot():
                return read(reader)

    with unavailable():
        return await system.run(reading)


CACHED = 256
"""The most rollouts whose results of `find` are cached."""
CACHED_BYTES = 64 * 1024
"""The most bytes of the Inits in a cached result of `find`."""
VERSION = "agent version "
"""The names of the facts about agent versions begin with this text."""
P = ParamSpec("P")


def _reads(method: "Callable[Concatenate[StoredRollouts, P], R]") -> "Callable[Concatenate[StoredRollouts, P], R]":
    """Make a method raise Unavailable when the disk cannot be read."""

    @functools.wraps(method)
    def read(self: "StoredRollouts", /, *args: P.args, **named: P.kwargs) -> R:
        with unavailable():
            try:
                return method(self, *args, **named)
            except schema.Damaged:  # a sweep may have deleted rows between two statements
                with self._reader.snapshot():
                    return method(self, *args, **named)

    return read


class StoredRollouts(Journal):
    """Reads rollouts over the connection `reads`, on the event loop, or over connections of other threads."""

    def __init__(self, path: Path, reads: sqlite3.Connection, secrets: Secrets, budget: int, system: System) -> None:
        self.path = path
        self.reads = reads
        self.secrets = secrets
        self._reader = Reader(reads)
        super().__init__(str(self._reader.fact("journal_id")))
        self.open_rollouts = OpenRollouts(budget)
        self._found: OrderedDict[str, Sequence[JournaledRollout]] = OrderedDict()
        """Results of `find`. A write of a rollout removes its entry."""
        self._system = system
        monotonic = system.monotonic
        self._clock_written = float(self._reader.fact("clock"))
        """The journal's time when the clock was last written."""
        ahead = self._clock_written - monotonic()
        self._now: Callable[[], float] = lambda: monotonic() + ahead

    @abstractmethod
    def _is_dropping(self, rollout_id: str) -> bool:
        """Return whether the deletion of a rollout is not committed yet."""

    @_reads
    def events(self, rollout_id: str, attempt: int, after: int, limit: int) -> Sequence[TrajectoryEvent]:
        rollout = self.open_rollouts.by_key.get((rollout_id, attempt))
        if rollout is not None:
            positions = rollout.positions[after : min(after + limit, rollout.committed)]
        else:
            positions = self._reader.positions(rollout_id, attempt)[after : after + limit]
        return self._reader.events(rollout_id, attempt, positions)

    @_reads
    def annotations(self, rollout_id: str, attempt: int) -> Sequence[TrajectoryEvent]:
        rollout = self.open_rollouts.by_key.get((rollout_id, attempt))
        if rollout is not None:
            positions = rollout.positions[: rollout.committed]
        else:
            positions = self._reader.positions(rollout_id, attempt)
        return self._reader.annotations(rollout_id, attempt, positions)

    @_reads
    def all_events(self, owner: str, after: int, limit: int) -> tuple[Sequence[tuple[int, TrajectoryEvent]], int]:
        return self._reader.all_events(owner, after, self.last_position, limit)

    def size(self, rollout_id: str, attempt: int) -> int:
        """Return about how many bytes the outcome of an ended rollout takes in memory until its delivery."""
        rollout = self.open_rollouts.by_key.get((rollout_id, attempt))
        return 2048 + (rollout.size // 4 if rollout else 0)

    @_reads
    def find(self, rollout_id: str) -> Sequence[JournaledRollout]:
        found = self._found.get(rollout_id)
        if found is None:
            # Checked before the read, because the thread may commit a deletion during it.
            dropping = self._is_dropping(rollout_id)
            found = [self._with_credentials(entry) for entry in self._reader.find(rollout_id)]
            small = sum(entry.init.size for entry in found) <= CACHED_BYTES
            if found and small and not dropping:
                self._found[rollout_id] = found
                if len(self._found) > CACHED:
                    self._found.popitem(last=False)
        return found

    @_reads
    def find_by_key(self, owner: str, idempotency_key: str) -> str:
        return self._reader.find_by_key(owner, idempotency_key)

    async def entries(
        self, owner: str, after: int, limit: int, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> Sequence[JournaledRollout]:
        def read(reader: Reader) -> list[JournaledRollout]:
            return reader.entries(owner, after, limit, where, newest_first=newest_first)

        return await read_on_thread(self._system, self.path, read)

    async def read_apart(self, read: Callable[[Trajectories], R]) -> R:
        return await read_on_thread(self._system, self.path, lambda reader: read(reader.trajectory))

    @_reads
    def unsettled(self) -> Sequence[JournaledRollout]:
        """Return the unsettled rollouts, and open them again. Delete the credentials of all other rollouts."""
        found: list[JournaledRollout] = []
        kept: list[Key] = []
        for row, trail in self._reader.unsettled():
            entry = self._with_credentials(self._reader.entry(row, row.wrong() or trail.wrong(row)))
            request = entry.init.request
            if entry.damage:
                log.error(
                    "rollout %s attempt %d is damaged in the journal %s: %s; it ends FAILED (server, DATA_LOSS)",
                    request.rollout_id,
                    request.attempt,
                    self.path,
                    entry.damage,
                )
            key = request.rollout_id, request.attempt
            rollout = self.open_rollouts.by_key[key] = OpenRollout(
                entry.sequence,
                key,
                entry.owner,
                row.accepted,
                row.accepted_at,
                trail.positions,
                len(trail.positions),
                start_time=entry.start_time,
                end=row.end,
                ended=entry.end_time is not None,
            )
            self.open_rollouts.grow(rollout, trail.size)
            kept.append(key)
            found.append(replace(entry, last_event_number=len(trail.positions)))
        self.secrets.keep(kept)
        return found

    @_reads
    def tombstones(self) -> Sequence[tuple[str, str, int, float]]:
        now = self._now()
        return self.reads.execute(
            "SELECT owner, rollout_id, attempt, until - ? FROM tombstones WHERE until > ?", (now, now)
        ).fetchall()

    @_reads
    def version(self, digest: str) -> Mapping[str, str]:
        value = self._reader.fact(VERSION + digest)
        return dict(json.loads(value)["parts"]) if value else {}

    @property
    def live_size(self) -> int:
        """Twice the bytes that running rollouts take in the file.

        Memory has the messages and tokens of a rollout twice, because a sample has copies of them.
        """
        return 2 * self.open_rollouts.live_size

    def elapsed(self, entry: JournaledRollout) -> float:
        return max(0.0, self._now() - entry.accepted_at)

    def has_room(self, owner: str) -> bool:
        return self.open_rollouts.has_room(owner)

    def _with_credentials(self, entry: JournaledRollout) -> JournaledRollout:
        """Return an entry with its stored credentials. Return the entry of a settled rollout unchanged."""
        return entry if entry.settled else replace(entry, init=self.secrets.add_to(entry.init))
