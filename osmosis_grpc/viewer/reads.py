"""Reads rollouts for the pages, outside the event loop and only as often as needed.

A state folder is read on other threads. A server is asked for at most about one list a second, however many pages are
open, because pages share a list until it is too old. live.py measures the cost of the reads.
"""

import asyncio
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import anyio

from osmosis_grpc.protocol.types import RolloutInfo, TrajectoryEvent
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.history import History
from osmosis_grpc.records.reading.journal_folder import Seen
from osmosis_grpc.records.reading.list_filter import ListOptions, rollout_filter
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.viewer.calls import Calls, Key, read_all
from osmosis_grpc.viewer.live import aside, counted, spending
from osmosis_grpc.viewer.tasks import Task, read_steps, read_tasks

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
READS = 2
"""The most concurrent reads of a source, which is also the number of threads that read a folder."""
LASTS = 0.9
"""How many seconds to reuse a list or an unfinished rollout. It is less than the pause between two live updates."""
STEP = "step:"
"""The prefix of a search word that names a step of the trainer, such as step:9."""
ENDED_FOR = 10.0
"""How many seconds to reuse an ended rollout. It is limited because annotations may follow the end."""
LISTS = 8
ROLLOUTS = 4
"""The most lists, and the most rollouts, in memory."""
SHARE = 0.1
"""Expensive values are reused longer, so that reading one takes at most this share of the time."""
KEPT = 4
"""The most values of one page that are kept in memory. A single value may have 10,000 rollouts."""
CALLS = 2_000
"""About how many rollouts may have their calls in memory."""
TASKS = 20_000
"""About how many rollouts may have their tasks and steps in memory."""
ASKED = 40
"""The most tasks that one list reads from a server. Later lists read the rest. A folder's are read all at once."""
MOST_ROWS = 500
"""The most rollouts of a page."""
SEARCHED = {True: 10_000, False: MOST_ROWS}
"""How many of the newest rollouts a search reads, for a folder (True) and for a server (False)."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of rollouts."""

    rows: tuple[RolloutInfo, ...]
    more: str
    now: float
    """The time as of which the rows are shown, in Unix seconds."""
    stopped: bool
    """Whether nothing can change, because no server runs."""
    searched: int = 0
    cut: bool = False
    tasks: Mapping[Key, Task] = field(default_factory=dict)
    """The known tasks of the rows."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rollout with its history."""

    info: RolloutInfo
    history: History
    now: float
    stopped: bool
    read_to: int

    @property
    def end(self) -> float:
        """The end or, for an unfinished rollout, the time as of which it is shown, in Unix seconds."""
        return self.now if self.info.end_time is None else self.info.end_time


class Reads:
    """Reads a source. The pages share it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._reading = anyio.CapacityLimiter(READS)
        self._turn = asyncio.Lock()
        self._locks: weakref.WeakValueDictionary[Hashable, asyncio.Lock] = weakref.WeakValueDictionary()
        """A lock for each rollout that is being read, so that pages with the same rollout read it once."""
        self._listed_at = float("-inf")
        self._lists = Shared(self._list, LISTS)
        self._rollouts: Recent[Loaded] = Recent(ROLLOUTS)
        self._seen = Seen()
        self._calls: dict[Key, Calls] = {}
        self._tasks: dict[Key, Task] = {}
        self._steps: dict[Key, str] = {}

    @property
    def is_folder(self) -> bool:
        """Whether the source is a state folder and not a server."""
        return isinstance(self.source, FolderSource)

    async def run(self, read: Callable[[Source], Awaitable[T]]) -> T:
        """Run a read and return its result. Reads of a folder run on other threads. Raises SourceError."""
        if not isinstance(self.source, FolderSource):
            async with self._reading:
                with spending(time.monotonic):
                    return await read(self.source)
        folder = self.source.folder

        async def of_folder() -> T:  # a source stores its last read, so each thread has its own source
            return await read(FolderSource(folder, self._seen))

        return await self.aside(lambda: asyncio.run(of_folder()))

    async def aside(self, compute: Callable[[], T]) -> T:
        """Run a slow function on another thread, like a read of a folder, and return its result."""
        return await aside(compute, self._reading)

    async def listed(self, options: ListOptions, search: str = "", token: str = "") -> Listed:
        """Return the rollouts that match. Raises FilterError for a wrong option and SourceError."""
        rollout_filter(options, 0.0)  # checks the options before the read
        return await self._lists.get((options, search, token))

    async def listed_with_tasks(self, options: ListOptions, search: str, token: str) -> Listed:
        """Return the rollouts that match, with their known tasks."""
        listed = await self.listed(options, search, token)
        return replace(listed, tasks=await self.tasks(listed.rows))

    async def newest(self, options: ListOptions) -> Listed:
        """Return all rollouts that match, within the limit of a search. Raises FilterError and SourceError."""
        rollout_filter(options, 0.0)
        await self._wait_for_server()
        return await self.run(lambda source: _newest(source, options))

    async def calls(self, rows: Sequence[RolloutInfo]) -> dict[Key, Calls]:
        """Return the calls of ended rollouts by id and attempt. The calls of a settled rollout are read once."""
        found = await self.run(lambda source: read_all(source, rows, self._calls))
        if len(self._calls) > CALLS:
            self._calls.clear()
        settled = ((info.rollout_id, info.attempt) for info in rows if not info.undelivered)
        self._calls.update((key, found[key]) for key in settled)
        return found

    async def tasks(self, rows: Sequence[RolloutInfo], most: int = ASKED) -> dict[Key, Task]:
        """Return the tasks of rollouts by id and attempt. From a server, read at most `most` tasks."""
        new = [info for info in rows if (info.rollout_id, info.attempt) not in self._tasks]
        new = new if self.is_folder else new[:most]
        found = await self.run(lambda source: read_tasks(source, new)) if new else {}
        known = {key: self._tasks[key] for info in rows if (key := (info.rollout_id, info.attempt)) in self._tasks}
        _keep(self._tasks, found)
        return known | found

    async def steps(self, rows: Sequence[RolloutInfo]) -> dict[Key, str]:
        """Return the trainer's step of each rollout, from its annotations. Return none for a server."""
        if not self.is_folder:
            return {}
        new = [info for info in rows if (info.rollout_id, info.attempt) not in self._steps]
        found = await self.run(lambda source: read_steps(source, new)) if new else {}
        known = {key: self._steps[key] for info in rows if (key := (info.rollout_id, info.attempt)) in self._steps}
        _keep(self._steps, found)
        return known | found

    async def _list(self, asked: tuple[ListOptions, str, str]) -> Listed:
        await self._wait_for_server()
        options, search, token = asked
        steps = {word.removeprefix(STEP) for word in search.lower().split() if word.startswith(STEP)}
        if steps:
            return await self._of_steps(options, search, steps)
        return await self.run(lambda source: _list(source, options, search, token))

    async def _of_steps(self, options: ListOptions, search: str, steps: set[str]) -> Listed:
        """Return the rollouts that these steps of the trainer used and that match the other words of a search."""
        everything = await self.run(lambda source: _newest(source, replace(options, limit=0)))
        known = await self.steps(everything.rows)
        words = [word for word in search.lower().split() if not word.startswith(STEP)]
        keys = {key for key, step in known.items() if step.lower() in steps}
        found = [info for info in everything.rows if (info.rollout_id, info.attempt) in keys and _has(info, words)]
        rows = tuple(found[: max(1, min(options.limit or MOST_ROWS, MOST_ROWS))])
        return replace(everything, rows=rows)

    async def _wait_for_server(self) -> None:
        """Wait until the next list may be requested from a server."""
        if self.is_folder:
            return
        async with self._turn:
            await asyncio.sleep(max(0.0, self._listed_at + LASTS - time.monotonic()))
            self._listed_at = time.monotonic()

    async def rollout(self, rollout_id: str, attempt: int = 0, *, fresh: bool = False) -> Loaded:
        """Return a rollout with its history. With `fresh`, always read it again. Raises SourceError."""
        key = rollout_id, attempt
        async with self._lock(key):
            lasts = (lambda it: 0.0) if fresh else _lasts
            known = self._rollouts.get(key, lasts)
            if known is not None:
                return known
            before = self._rollouts.get(key, lambda it: float("inf"))
            after = before.read_to if before is not None else 0
            info, found, as_of = await self.run(lambda source: _load(source, rollout_id, attempt, after))
            if before is None or info.attempt != before.info.attempt:
                before, found = None, found if not after else (await self._whole(info))
            history = before.history if before is not None else History()
            for event in found:
                history.add(event)
            read_to = found[-1].event_number if found else after
            now = time.time() if as_of is None else as_of
            loaded = Loaded(info, history, now, as_of is not None, read_to)
            self._rollouts.put(key, loaded)
            return loaded

    def forget(self, rollout_id: str) -> None:
        """Drop a rollout that has changed from memory, so that the next page that shows it reads it again."""
        self._rollouts.drop(lambda key: isinstance(key, tuple) and key[0] == rollout_id)

    def _lock(self, key: Hashable) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _whole(self, info: RolloutInfo) -> list[TrajectoryEvent]:
        return (await self.run(lambda source: _load(source, info.rollout_id, info.attempt, 0)))[1]


class Recent(Generic[T]):
    """Keeps the values that were stored last, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable, lasts: Callable[[T], float]) -> T | None:
        """Return a value if it is younger than `lasts(value)` seconds, else None."""
        put_at, value = self._found.get(key, (float("-inf"), None))
        return value if value is not None and time.monotonic() - put_at < lasts(value) else None

    def drop(self, which: Callable[[Hashable], bool]) -> None:
        """Drop the values whose keys `which` selects."""
        self._found = {key: value for key, value in self._found.items() if not which(key)}

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value. Drop the oldest one if there are too many."""
        self._found.pop(key, None)
        self._found[key] = time.monotonic(), value
        if len(self._found) > self._most:
            del self._found[next(iter(self._found))]


class Shared(Generic[K, T]):
    """Reads a value once for all callers that need it at about the same time. Keeps at most `most` values.

    A value is reused for LASTS seconds, or longer if it is expensive, so that reads take at most SHARE of the time.
    """

    def __init__(self, read: Callable[[K], Awaitable[T]], most: int = KEPT) -> None:
        self._read = read
        self._found: Recent[tuple[float, T]] = Recent(most)
        self._locks: weakref.WeakValueDictionary[K, asyncio.Lock] = weakref.WeakValueDictionary()

    async def get(self, key: K) -> T:
        """Return the newest value of a key. Raises the errors of `read`."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            until, value = self._found.get(key, lambda it: math.inf) or (-math.inf, None)
            began = time.monotonic()
            if value is None or until <= began:
                with counted() as cost:
                    value = await self._read(key)
                self._found.put(key, (began + max(LASTS, cost.seconds / SHARE), value))
            return value


async def _moment(source: Source) -> tuple[float, bool]:
    as_of = await source.as_of()
    return (time.time(), False) if as_of is None else (as_of, True)


async def _list(source: Source, options: ListOptions, search: str, token: str) -> Listed:
    now, stopped = await _moment(source)
    where, limit = rollout_filter(options, time.time()), max(1, min(options.limit or MOST_ROWS, MOST_ROWS))
    if not search:
        rows, more = await source.page(where, token, limit=limit, newest_first=not options.oldest)
        return Listed(tuple(rows), more, now, stopped)
    found: list[RolloutInfo] = []
    words, looked, more = search.lower().split(), 0, token
    most = SEARCHED[isinstance(source, FolderSource)]
    while len(found) < limit:
        rows, more = await source.page(where, more, limit=MOST_ROWS, newest_first=not options.oldest)
        looked += len(rows)
        found += [info for info in rows if _has(info, words)]
        if not more or looked >= most:
            break
    return Listed(tuple(found[:limit]), "", now, stopped, looked, bool(more))


async def _newest(source: Source, options: ListOptions) -> Listed:
    now, stopped = await _moment(source)
    most = SEARCHED[isinstance(source, FolderSource)]
    limit = max(1, min(options.limit or most, most))
    where = rollout_filter(options, time.time())
    rows, cut = await source.headers(where, limit=limit, newest_first=not options.oldest)
    return Listed(tuple(rows), "", now, stopped, len(rows), cut)


def _keep(known: dict[K, T], found: Mapping[K, T]) -> None:
    if len(known) + len(found) > TASKS:
        known.clear()
    known.update(found)


def _has(info: RolloutInfo, words: list[str]) -> bool:
    group = info.group.id if info.group is not None else ""
    texts = (info.rollout_id, info.agent_loop, group, info.failure_reason, info.failure_summary, info.state.value)
    text = "\n".join(texts).lower()
    return all(word in text for word in words)


def _lasts(loaded: Loaded) -> float:
    return LASTS if loaded.info.end_time is None else ENDED_FOR


async def _load(
    source: Source, rollout_id: str, attempt: int, after: int
) -> tuple[RolloutInfo, list[TrajectoryEvent], float | None]:
    """Return a rollout, its events with numbers above `after`, and the `as_of` of the source."""
    info = await source.get(rollout_id, attempt)
    found: list[TrajectoryEvent] = []
    if info.last_event_number > after:
        async with aclosing(source.events(rollout_id, info.attempt, after=after)) as trail:
            found = [event async for event in trail]
    return info, found, await source.as_of()
