"""The event log: numbers the events of each rollout, commits them, and shows them to sinks and readers.

An event is shown only after its commit, so sinks and readers never see two different events with the same number.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, NoReturn, get_args

from osmosis_grpc.agent.ports import EventSink
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.errors import CallError, FailedPrecondition, InvalidArgument, OutOfRange, Unavailable
from osmosis_grpc.protocol.types import EventKind, JournaledRollout, TrajectoryEvent, events
from osmosis_grpc.protocol.types.messages import text_size
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

COMMITTED = job("engine.committed", OnFailure.REPORT, "callback")

Then = Callable[[Record], None]
"""A function to call with the record after the commit of an event."""
Token = tuple[Record, TrajectoryEvent, Then | None]

BATCH = 256
"""The number of events that are read from the journal at once."""


class EventLog:
    """Appends events to a Journal, and reads them for followers."""

    def __init__(
        self, journal: Journal, sinks: Sequence[EventSink], idle_interval: float, supervisor: Supervisor
    ) -> None:
        self._journal = journal
        self.on_failed: Callable[[Record, Then, BaseException], None] = lambda record, then, error: None
        """Called when the `then` of an append() has raised."""
        self._supervisor = supervisor
        journal.on_commit = self._committed
        self._monotonic, self._time = supervisor.system.monotonic, supervisor.system.time
        self._sinks: dict[type, list[EventSink]] = {kind: list(sinks) for kind in get_args(EventKind)}
        self.dropped = 0
        """The number of events that could not be committed."""
        self._idle = idle_interval
        self.waiters: dict[asyncio.Event, None] = {}

    def append(
        self, record: Record, kind: EventKind, then: Then | None = None, *, entry: JournaledRollout | None = None
    ) -> None:
        """Append the next event of a rollout, and call `then` after its commit.

        If `then` raises, `on_failed` gets the exception. If append() raises, nothing was written. If the event cannot
        be committed, `record.trail.journaled` becomes False, `then` is still called, and the rollout continues without
        events.
        """
        record.run.progress, record.run.progress_time = self._monotonic(), self._time()
        if not record.trail.journaled:
            self.dropped += 1
            self._follow_up(record, then)
            return
        number = record.trail.written + 1
        event = TrajectoryEvent(record.rollout_id, record.attempt, number, record.run.progress_time, kind)
        size = 0 if self._journal.durable else _size(kind)
        committed = self._journal.append(event, size, (record, event, then), entry)
        record.trail.written = number
        if committed:
            self._show(record, event)
            self._follow_up(record, then)

    def add_sink(self, sink: EventSink, *kinds: type) -> None:
        """Call a sink with each committed event of these kinds; by default, of all kinds."""
        for kind in kinds or self._sinks:
            self._sinks[kind] = [*self._sinks[kind], sink]

    @property
    def writes_files(self) -> bool:
        """Whether a sink writes the events of ctx.log_event to a file. Such a sink has `writes_files = True`."""
        return any(getattr(sink, "writes_files", False) for sink in self._sinks[events.Logged])

    def barrier(self, then: Callable[[CallError | None], None]) -> None:
        """Call `then` with None when all events that were appended so far are committed.

        If one of them cannot be committed, call `then` with an error.
        """

        def report(ok: bool) -> None:
            why = f"the journal cannot be written: {self._journal.problem}"
            then(None if ok else Unavailable(f"{why}; what was asked holds in this process", retry_after=5.0))

        self._journal.barrier(report)

    async def flush(self) -> None:
        """Wait until all events that were appended so far are committed. Raises Unavailable if that is impossible."""
        done: asyncio.Future[CallError | None] = asyncio.get_running_loop().create_future()
        self.barrier(lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    def _committed(self, tokens: Sequence[Token], ok: bool) -> None:
        """Handle events that the journal has committed, or if `ok` is False, could not commit."""
        for record, event, then in tokens:
            if ok and record.trail.journaled:
                self._show(record, event)
            else:
                record.trail.journaled = False
                self.dropped += 1
            self._follow_up(record, then)

    def _follow_up(self, record: Record, then: Then | None) -> None:
        if then is not None:
            self._supervisor.call(COMMITTED, then, record, report=lambda error: self.on_failed(record, then, error))

    def _show(self, record: Record, event: TrajectoryEvent) -> None:
        record.trail.last_event_number = event.event_number
        try:
            for waiter in record.trail.waiters:
                waiter.set()
            for waiter in self.waiters:
                waiter.set()
        except Exception as error:  # readers read again after idle_interval
            self._supervisor.failed(COMMITTED, error, lambda error: None)
        for sink in self._sinks[type(event.kind)]:
            try:
                sink(event)
            except Exception:
                log.exception("an event sink failed; the rollout continues")

    def trajectory(self, rollout_id: str, attempt: int) -> Iterator[TrajectoryEvent]:
        """Yield all committed events of a rollout."""
        after = 0
        while batch := self._journal.events(rollout_id, attempt, after, BATCH):
            yield from batch
            after = batch[-1].event_number

    def cursor(self, position: int) -> str:
        """Return the cursor for a position."""
        return f"{self._journal.journal_id}.{position}"

    def position(self, cursor: str) -> int:
        """Return the position of a cursor.

        Raises InvalidArgument if the cursor is malformed or ahead of the journal. Raises FailedPrecondition if the
        cursor belongs to another journal. Raises OutOfRange if events after the cursor were dropped.
        """
        journal, _, text = cursor.rpartition(".")
        if not text.isdecimal() or len(text) > 18 or not journal:
            raise InvalidArgument("cursor", "is not one of this server's")
        if journal != self._journal.journal_id:
            raise FailedPrecondition(
                "the cursor is of another journal: the server has forgotten what it ran before",
                kind="JOURNAL",
                subject=self._journal.journal_id,
                reason="JOURNAL_CHANGED",
            )
        position = int(text)
        if position < self._journal.forgotten_position:
            self._raise_gone()
        if position > self._journal.last_position:
            raise InvalidArgument("cursor", "is ahead of the journal")
        return position

    async def follow(self, record: Record, after: int) -> AsyncGenerator[TrajectoryEvent | None, None]:
        """Yield the events of a rollout after number `after`, and then each new event. None stands for a heartbeat.

        The iteration ends when the rollout can have no further events.
        """
        if after > record.trail.last_event_number:
            raise InvalidArgument(
                "after_event", f"{after} is ahead of the newest event, {record.trail.last_event_number}"
            )
        waiter = asyncio.Event()
        record.trail.waiters[waiter] = None
        try:
            while True:
                waiter.clear()
                batch = self._journal.events(record.rollout_id, record.attempt, after, BATCH)
                if not batch and after < record.trail.last_event_number:
                    raise OutOfRange(
                        "the rollout's events are no longer kept", first_event_number=record.trail.last_event_number + 1
                    )
                for event in batch:
                    yield event
                    after = event.event_number
                if not batch:
                    if record.delivery.settled:
                        return
                    if not await self._woken(waiter):
                        yield None
        finally:
            record.trail.waiters.pop(waiter, None)

    async def follow_all(self, owner: str, position: int) -> AsyncGenerator[tuple[int, TrajectoryEvent | None], None]:
        """Yield the events of an owner after a position, and then each new event, endlessly.

        Each event comes with its position. None instead of an event stands for a heartbeat.
        """
        waiter = asyncio.Event()
        self.waiters[waiter] = None
        gone = self._journal.forgotten_position
        try:
            yield position, None
            while True:
                waiter.clear()
                if self._journal.forgotten_position > max(gone, position):
                    self._raise_gone()
                batch, reached = self._journal.all_events(owner, position, BATCH)
                for position, event in batch:
                    yield position, event
                position = max(position, reached)
                if position < self._journal.last_position:
                    await asyncio.sleep(0)  # let other tasks run between two batches
                elif not await self._woken(waiter):
                    yield position, None
        finally:
            self.waiters.pop(waiter, None)

    def _raise_gone(self) -> NoReturn:
        first = self.cursor(self._journal.forgotten_position)
        raise OutOfRange("events after this cursor are no longer kept", first_cursor=first)

    async def _woken(self, waiter: asyncio.Event) -> bool:
        """Wait for an event. Return False after idle_interval without one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle):
                await waiter.wait()
        return waiter.is_set()


def _size(kind: EventKind) -> int:
    return 400 + _EXTRA.get(type(kind), lambda kind: 0)(kind)


def _answered(kind: events.ChatAnswered) -> int:
    response = kind.response
    if response.size:
        return 2 * response.size
    blocks = (response.tokens, response.prompt_ids, *response.prompt_extras.values())
    arrays = sum(block.nbytes for block in blocks if block is not None)
    return 2 * arrays + 2 * text_size([response.message])


def _ended(kind: events.Ended) -> int:
    outcome = kind.outcome
    arrays = sum(s.nbytes for sample in outcome.samples.values() for s in sample.segments)
    texts = sum(text_size(sample.messages) for sample in outcome.samples.values())
    return arrays + texts + text_size([dict(outcome.extra_fields)])


_EXTRA: dict[type[EventKind], Callable[[Any], int]] = {
    events.Accepted: lambda kind: 2 * (kind.init.size or text_size(kind.init.request.messages)),
    events.ChatRequested: lambda kind: 2 * text_size(kind.messages),
    events.ChatAnswered: _answered,
    events.ToolCalled: lambda kind: text_size([dict(kind.call)]),
    events.ToolReturned: lambda kind: text_size([dict(kind.message or {})]),
    events.Logged: lambda kind: text_size([dict(kind.data)]),
    events.Ended: _ended,
    events.Annotated: lambda kind: kind.annotation.nbytes,
}
"""For each kind, a function that returns the size of an event in bytes, beyond the 400 that every event counts."""
