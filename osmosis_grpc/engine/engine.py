"""The engine: which rollouts there are, whose they are, and what may be asked of them.

Knows no transport. A rollout is told apart by its id and attempt, and belongs to the owner it
came from; to everybody else it does not exist.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import Clock, EventSink, Journal
from osmosis_grpc.engine import failpoints, verdicts
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.memory import MemoryStore
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Peer, Record, Tenant
from osmosis_grpc.engine.recording import Recording
from osmosis_grpc.engine.runner import Runner, let_go, own_copy
from osmosis_grpc.engine.table import RecordTable
from osmosis_grpc.engine.watchdog import Watchdog
from osmosis_grpc.engine.whole import whole
from osmosis_grpc.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from osmosis_grpc.types import (
    Capacity,
    CompletionStatus,
    Entry,
    InitRequest,
    RolloutInfo,
    RolloutState,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.types.completion import clip, describe
from osmosis_grpc.types.tools import tool_dicts

log = logging.getLogger(__name__)

LAST_DELIVERIES = 3.5
"""Seconds after the drain limit in which the last completions may still be delivered."""
DRAIN_RETRY_AFTER = 5.0
"""What a caller of a draining server is told to wait, in seconds."""


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


@dataclass(frozen=True, slots=True)
class CancelRow:
    """What a cancel met. `state` is None when the rollout is unknown."""

    rollout_id: str
    attempt: int = 0
    cancelled: bool = False
    state: RolloutState | None = None


class Engine:
    """Hosts agent loops. Used as `async with Engine(loops) as engine`."""

    def __init__(
        self, agent_loops: Iterable[RolloutAgentLoop], config: EngineConfig | None = None, *,
        journal: Journal | None = None, clock: Clock | None = None, sinks: Sequence[EventSink] = (),
    ) -> None:  # fmt: skip
        self.config = config or EngineConfig()
        loops = list(agent_loops)
        self.agent_loops = {loop.name: loop for loop in loops}
        if len(self.agent_loops) < len(loops):
            raise ValueError(f"agent loops need names of their own: {', '.join(sorted(loop.name for loop in loops))}")
        self.clock: Clock = clock or SystemClock()
        self.log = EventLog(journal or MemoryStore(), self.clock, sinks, self.config.idle_interval)
        self._journal = journal
        self.draining = False
        self.watchdog = Watchdog(self.config.blocked_after)
        self.outbox = Outbox(self.config, self.log, self.clock, self._delivered)
        self._table = RecordTable(self.config, self.log.store, journal, self.clock)
        self._admission = Admission(self.config.max_concurrent, self.config.queue_limit)
        self._runner = Runner(
            self.agent_loops, self.config, self._admission, self.log, self.clock, self._ended, self.outbox.drop
        )  # fmt: skip
        self._callbacks = Tenant()
        self._closing = False
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks: TaskGroup
        self._host: asyncio.Task[None]

    async def __aenter__(self) -> "Engine":
        started = asyncio.Event()
        self._host = asyncio.create_task(self._run(started))
        await started.wait()
        self.watchdog.start()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self.close(0.0)
        finally:
            self.watchdog.stop()
            await self.outbox.close()
            self._stopping.set()
            await self._host

    async def init(self, init: InitRequest, *, owner: str, peer: Peer) -> tuple[Record, bool]:
        """Accept a rollout, or find the equal one accepted before: its record, and whether this started it."""
        record, started = self.begin(init, owner=owner, peer=peer)
        if not record.accepted.done():
            await asyncio.shield(record.accepted)
        record.accepted.result()
        return record, started

    def begin(self, init: InitRequest, *, owner: str, peer: Peer) -> tuple[Record, bool]:
        """The same without waiting: `record.accepted` is done once it is accepted or refused."""
        request = init.request
        known = self._table.highest(request.rollout_id)
        if known is not None and known.owner != owner:
            raise AlreadyExists(f"rollout {request.rollout_id} exists", rollout_id=request.rollout_id)
        if known is not None and known.attempt >= request.attempt:
            self._check_same(known, init)
            self._repoint(known, init, peer)
            return known, False
        self._table.check_alias(request, owner)
        name = self._agent_loop(request.agent_loop)
        if self.draining:
            raise Unavailable("the server is draining", retry_after=DRAIN_RETRY_AFTER)
        if self._table.full:
            raise ResourceExhausted("the budget is full of undelivered completions", retry_after=5.0)
        if self.log.store.problem:
            raise Unavailable(f"the journal cannot be written: {self.log.store.problem}", retry_after=5.0)
        own = own_copy(request)
        self._admission.reserve()
        now = self.clock.monotonic()
        record = Record(
            init, owner, peer, peer.tenant or self._callbacks, self.clock.time(), Meter(now),
            asyncio.get_running_loop().create_future(),
            agent_loop=name, deadline=None if request.agent_timeout is None else now + request.agent_timeout,
        )  # fmt: skip
        record.accepted.add_done_callback(_retrieve)
        self._table.add(record)
        record.tenant.open += 1
        try:
            tools = self.agent_loops[name].get_tools(own)
        except BaseException as error:  # the agent's code may raise anything; nothing is awaited here
            self._refuse(record, error)
        else:
            if inspect.isawaitable(tools):
                self._tasks.start_soon(self._accept_later, record, tools)
            else:
                self._accept(record, tools)
        return record, True

    def lose(self, tenant: Tenant, seconds: float) -> None:
        """A trainer stayed away for too long: what is unfinished of its rollouts ends FAILED (trainer, retryable)."""
        tenant.lost = True
        for record in self._table.live():
            if record.tenant is tenant and record.accepted.done():
                self._runner.decide(record, verdicts.lost(seconds))

    @property
    def closing(self) -> bool:
        """Whether it takes nothing at all any more."""
        return self._closing

    def holds(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Whether an Init of this attempt adds no live rollout: it is known, or replaces a live one."""
        known = self._table.highest(rollout_id)
        return known is not None and known.owner == owner and (known.attempt >= attempt or known.live)

    def was_asked(self, owner: str, rollout_id: str, attempt: int, sample: str, number: int) -> bool:
        """Whether this chat was ever asked; of an ended rollout nobody remembers, and so it was."""
        record = self._table.find(rollout_id, attempt)
        if record is None or record.owner != owner:
            return False
        return record.session is None or 0 < number <= record.session.asked(sample)

    def knows(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Whether an accepted attempt is the owner's, running or ended."""
        record = self._table.find(rollout_id, attempt)
        return record is not None and record.owner == owner and record.accepted.done()

    def cancel(
        self, owner: str, *, rollout_id: str = "", group_id: str = "", attempt: int = 0, reason: str = ""
    ) -> list[CancelRow]:
        """Cancel one rollout, a group, or, with neither given, all of the owner's."""
        if not rollout_id:
            live = [r for r in self._table.live() if r.owner == owner]
            return [self._cancel(r, reason) for r in live if not group_id or (
                r.init.request.group is not None and r.init.request.group.id == group_id)]  # fmt: skip
        pending = [
            r for r in self._table.pending(rollout_id) if r.owner == owner and r.attempt <= (attempt or r.attempt)
        ]
        rows = [self._cancel(record, reason) for record in pending]
        known = self._table.accepted(rollout_id)
        if known is None or known.owner != owner:
            if not rows:
                self._table.bury(owner, rollout_id, attempt, self.clock.monotonic())
            return rows or [CancelRow(rollout_id)]
        if attempt and attempt < known.attempt:
            older = self._table.find(rollout_id, attempt)
            return [CancelRow(rollout_id, attempt, state=older.state if older else None)]
        if attempt > known.attempt and not rows:
            self._table.bury(owner, rollout_id, attempt, self.clock.monotonic())
        return [self._cancel(known, reason), *rows]

    def get(self, owner: str, rollout_id: str, attempt: int = 0) -> Record:
        """A rollout of the owner's. Raises NotFound."""
        record = self._table.find(rollout_id, attempt) if attempt else self._table.accepted(rollout_id)
        if record is None or record.owner != owner or not record.accepted.done():
            raise NotFound(f"there is no rollout {rollout_id}" + (f" attempt {attempt}" if attempt else ""),
                           kind="rollout", name=rollout_id)  # fmt: skip
        return record

    def info(self, record: Record) -> RolloutInfo:
        """Where a rollout stands, with its completion once there is one."""
        info, completion = record.info(), record.completion
        return info if completion is None else replace(info, completion=whole(completion, self.log.trajectory))

    def rollouts(self, owner: str, after: int = 0, limit: int = 100, *, states: Sequence[RolloutState] = (),
             group_id: str = "", undelivered: bool = False) -> tuple[list[RolloutInfo], int]:  # fmt: skip
        """The owner's rollouts accepted after a place, and the place to go on from; 0 after the last."""
        rows: list[RolloutInfo] = []
        place = 0
        for record in self._table.after(after, owner):
            group = record.init.request.group
            if not record.accepted.done() or (states and record.state not in states):
                continue
            if (group_id and (group is None or group.id != group_id)) or (undelivered and not record.undelivered):
                continue
            if len(rows) == limit:
                return rows, place
            rows.append(record.info())
            place = record.sequence
        return rows, 0

    def follow_all(
        self, owner: str, cursor: str, from_now: bool
    ) -> AsyncGenerator[tuple[int, TrajectoryEvent | None], None]:
        """All of the owner's events from a cursor onward."""
        start = self.log.store.last_position if from_now else 0
        position = self.log.position(cursor) if cursor else start

        def mine(event: TrajectoryEvent) -> bool:
            record = self._table.find(event.rollout_id, event.attempt)
            return record is not None and record.owner == owner

        return self.log.follow_all(position, mine)

    def capacity(self) -> Capacity:
        """What there is room for."""
        return Capacity(
            max_concurrent=self.config.max_concurrent, max_queued=self.config.queue_limit,
            running=self._admission.running - len(self._runner.abandoned), queued=self._admission.queued,
            abandoned=len(self._runner.abandoned), undelivered=self.outbox.undelivered, expired=self.outbox.expired,
            completed=self._table.ended_count,
        )  # fmt: skip

    def drain(self) -> None:
        """Take no new rollouts from now on."""
        self.draining = True

    async def drained(self, limit: float) -> bool:
        """Wait until everything has ended and is delivered; false when the limit came first."""
        with anyio.move_on_after(limit):
            while self._unfinished() or self.outbox.undelivered:
                self._changed.clear()
                await self._changed.wait()
            return True
        return False

    async def stop(self, limit: float) -> None:
        """Drain: what runs may finish for `limit` seconds; what does not, ends FAILED (server, retryable)."""
        self.drain()
        if limit and not await self.drained(limit):
            left = self.capacity()
            log.warning(
                "the drain limit of %g s is over: %d running, %d queued, %d undelivered",
                limit, left.running, left.queued, left.undelivered,
            )  # fmt: skip
        await self.close(LAST_DELIVERIES if limit else 0.0)
        if self.outbox.undelivered and self._journal is None:
            log.error("%d completions were not delivered and are lost with this process", self.outbox.undelivered)
        elif self._journal is not None and (self.parked or self.outbox.undelivered):
            log.info(
                "%d unfinished rollouts and %d undelivered completions stay in the journal",
                len(self.parked), self.outbox.undelivered,
            )  # fmt: skip

    async def close(self, limit: float) -> None:
        """End what still lives as FAILED (server, retryable), and try for `limit` seconds to deliver it.

        Agents are waited for as long as it takes to stop one, whatever the limit.
        """
        self.draining = self._closing = True
        shutdown = verdicts.failed("server", "the server shut down", retryable=True, reason="shutdown")
        for record in self._table.live():
            if not record.accepted.done() or record.verdict is not None or record.parked:
                continue
            if self._journal is not None and record.journaled and (
                record.task is None or self.agent_loops[record.agent_loop].replayable
            ):  # fmt: skip
                self._runner.park(record)
            else:
                self._runner.decide(record, shutdown)
        began = self.clock.monotonic()
        with anyio.move_on_after(self._runner.longest_stop):
            while any(record.accepted.done() for record in self._unfinished()):
                self._changed.clear()
                await self._changed.wait()
        if limit:
            await self.drained(max(0.0, began + limit - self.clock.monotonic()))

    def _unfinished(self) -> list[Record]:
        """What this process has still to do with: all that lives, and is not left to the next one."""
        return [record for record in self._table.live() if not record.parked or record.task is not None]

    @property
    def parked(self) -> list[Record]:
        """What stays in the journal, unfinished, for the next process."""
        return [record for record in self._table.live() if record.parked]

    @property
    def durable(self) -> bool:
        """Whether there is a journal."""
        return self.log.store.durable

    def left_over(self) -> Sequence[Entry]:
        """What another process left in the journal, in order of acceptance; go_on takes each."""
        return self._journal.unsettled() if self._journal is not None else ()

    def go_on(self, entry: Entry, peer: Peer) -> None:
        """Go on with what another process left: deliver it, start it, run it again on what is recorded, or end it."""
        now = self.clock.monotonic()
        elapsed = max(0.0, self.clock.time() - entry.accept_time)
        record = Record.of(entry, peer, peer.tenant or self._callbacks, now, elapsed)
        self._table.restore(record)
        newest = self._table.highest(record.rollout_id)
        superseded = newest is not None and newest.attempt > record.attempt
        if record.completion is not None:
            self._table.ended(record)
            if superseded:
                self.outbox.give_up(record)
            else:
                self.outbox.put(record)
            return
        record.tenant.open += 1
        if superseded:  # the process before did not come to end it
            self._runner.supersede(record)
            return
        recording = Recording(self.log.trajectory(record.rollout_id, record.attempt))
        loop = self.agent_loops.get(record.agent_loop)
        if recording.cancelled is not None:
            self._runner.decide(record, verdicts.cancelled(recording.cancelled))
        elif recording.began and (loop is None or not loop.replayable):
            why = "the server was started again while it ran" if loop else f"agent loop {record.agent_loop!r} is gone"
            self._runner.decide(record, verdicts.failed("server", why, retryable=True, reason="restart"))
        elif loop is None:
            why = f"there is no agent loop {record.agent_loop!r} any more"
            self._runner.decide(record, verdicts.failed("server", why, retryable=True, reason="restart"))
        else:
            if recording.began:
                record.recording = recording
                self.log.append(record, events.Resumed(record.last_number))
            self._admission.reserve(beyond=True)
            self._runner.admit(record)

    def _agent_loop(self, name: str) -> str:
        if not name and len(self.agent_loops) == 1:
            return next(iter(self.agent_loops))
        if not name:
            raise InvalidArgument("agent_loop", f"name one of: {', '.join(sorted(self.agent_loops))}")
        if name not in self.agent_loops:
            raise NotFound(f"there is no agent loop {name!r}; there are: {', '.join(sorted(self.agent_loops))}",
                           kind="agent_loop", name=name)  # fmt: skip
        return name

    @staticmethod
    def _check_same(known: Record, init: InitRequest) -> None:
        request = init.request
        if known.attempt > request.attempt:
            raise Aborted(f"rollout {request.rollout_id} is at attempt {known.attempt}",
                          rollout_id=request.rollout_id, attempt=known.attempt)  # fmt: skip
        if known.init.digest != init.digest:
            raise AlreadyExists(
                f"rollout {request.rollout_id} attempt {known.attempt} was started with another request",
                rollout_id=request.rollout_id, attempt=known.attempt,
            )  # fmt: skip

    def _repoint(self, record: Record, init: InitRequest, peer: Peer) -> None:
        if record.peer.key == peer.key:
            return
        record.peer, record.init = peer, init
        if self._journal is not None and not record.settled:
            self._journal.repoint(record.entry())
        tenant = peer.tenant or self._callbacks
        if tenant is not record.tenant and record.live:
            record.tenant.open -= 1
            tenant.open += 1
            self._admission.move(record, tenant, runs=record.task is not None)
        record.turn()

    async def _accept_later(self, record: Record, tools: Awaitable[Any]) -> None:
        """An awaitable get_tools is the agent's code: it runs in a plain task, with a limit."""
        task = asyncio.create_task(settled(tools))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.config.get_tools_timeout)
        except asyncio.CancelledError:
            task.cancel()
            self._refuse(record, Unavailable("the server is shutting down"))
            raise
        if not done:
            task.cancel()
            self._refuse(record, TimeoutError(f"it took longer than {self.config.get_tools_timeout:g} s"))
            return
        result, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
        if error is not None:
            self._refuse(record, error)
        else:
            self._accept(record, result)

    def _accept(self, record: Record, tools: Any) -> None:
        """Commit a rollout: from here on it ends exactly once."""
        newest = self._table.highest(record.rollout_id)
        try:
            if newest is not None and newest is not record:
                raise Aborted(f"rollout {record.rollout_id} is at attempt {newest.attempt}",
                              rollout_id=record.rollout_id, attempt=newest.attempt)  # fmt: skip
            if self._closing:
                raise Unavailable("the server is shutting down")
            record.tools = tool_dicts(tools)
        except Exception as error:  # what get_tools returned may be anything, and is looked at here
            self._refuse(record, error)
            return
        self._table.accept(record)
        entry = record.entry() if self._journal is not None else None
        self.log.append(record, events.Accepted(record.init, record.tools), self._accepted, entry=entry)

    def _accepted(self, record: Record) -> None:
        """A rollout is committed, and runs or waits from here on."""
        if not record.journaled:
            self._refuse(
                record, Unavailable(f"the journal cannot be written: {self.log.store.problem}", retry_after=5.0)
            )
            return
        failpoints.reach("init.committed")
        for other in self._table.attempts_below(record):
            self._runner.supersede(other)
        buried = self._table.dig_up(record, self.clock.monotonic())
        record.accepted.set_result(None)
        if self._closing:  # it waits in the journal for the next process
            self._admission.release()
            record.parked = True
            return
        if record.cancel_reason is None and not buried and not record.tenant.lost:
            self._runner.admit(record)
            return
        if record.tenant.lost:
            self._admission.release()
            self._runner.decide(record, verdicts.lost(self.config.trainer_grace))
            return
        self._admission.release()
        self.log.append(record, events.CancelAsked(record.cancel_reason or "cancelled before its Init came"))
        self._runner.decide(record, verdicts.cancelled("cancelled"))

    def _refuse(self, record: Record, error: BaseException) -> None:
        """Keep nothing of a rollout that was not accepted."""
        self._table.remove(record)
        let_go(self.agent_loops[record.agent_loop], record)
        if record.cancel_reason is not None:
            self._table.bury(record.owner, record.rollout_id, record.attempt, self.clock.monotonic())
        self._admission.release()
        record.tenant.open -= 1
        self._changed.set()
        if not isinstance(error, CallError) or isinstance(error, InvalidArgument):
            text = clip(f"{type(error).__name__}: {describe(error)}")
            error = Internal(f"get_tools of {record.agent_loop} failed: {text}")
        record.accepted.set_exception(error)

    def _cancel(self, record: Record, reason: str) -> CancelRow:
        decided = record.verdict
        row = (record.rollout_id, record.attempt)
        if not record.accepted.done():
            record.cancel_reason = reason
            return CancelRow(*row, True, record.state)
        if decided is None and record.live:
            self.log.append(record, events.CancelAsked(reason))
            self._runner.decide(record, verdicts.cancelled(reason))
            return CancelRow(*row, True, record.state)
        cancelled = record.live and decided is not None and decided.status is CompletionStatus.CANCELLED
        return CancelRow(*row, cancelled, record.state)

    def _ended(self, record: Record) -> None:
        assert record.verdict is not None
        record.tenant.open -= 1
        if record.verdict.deliver:
            self.outbox.put(record)
        elif not record.settled:
            self.outbox.give_up(record)
        self._table.ended(record)
        self._changed.set()

    def _delivered(self, record: Record) -> None:
        record.settled = True
        self._table.settled(record)
        self._changed.set()

    async def _run(self, started: asyncio.Event) -> None:
        """Hosts the engine's own tasks, so that it may be entered and left by different tasks."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._sweep)
            started.set()
            await self._stopping.wait()
            self._tasks.cancel_scope.cancel()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self.config.sweep_interval)
            now = self.clock.monotonic()
            for record in self._table.overdue(now):
                self.outbox.expire(record)
            self._table.sweep(now)


async def settled(tools: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What an awaitable gives, or what it raises: SystemExit, too, must not leave its task."""
    try:
        return await tools, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _retrieve(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
