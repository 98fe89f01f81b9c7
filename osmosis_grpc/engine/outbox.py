"""Delivery: every completion at least once, until its receiver has settled it or its time is up."""

import asyncio
import logging
from functools import partial

from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.resolve_references import has_references, resolve_from_journal
from osmosis_grpc.errors import Aborted, InvalidArgument, Unimplemented
from osmosis_grpc.supervise import Backoff, OnFailure, child, future, job
from osmosis_grpc.types import Completion, Outcome, events
from osmosis_grpc.types.completion import clip, describe

log = logging.getLogger(__name__)

COMPLETE = job("engine.complete", OnFailure.RAISE)
TRIED = job("engine.first_delivery", OnFailure.REPORT, "callback")
DELIVER = job("engine.deliver", OnFailure.RESTART)

FINAL = (InvalidArgument, Aborted, Unimplemented)
"""A receiver that answers so will never take this completion."""


class Outbox:
    """Counts what is undelivered, and delivers it. `settled` is told when one is."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._closed = False
        self._retries: set[asyncio.Task[None]] = set()
        self.attempts = 0
        """How often a completion was sent."""
        self.undelivered = 0
        self.expired = 0
        """Completions that were given up because their time was up."""

    def put(self, record: Record) -> None:
        """A rollout ended: deliver its completion. Most are taken at the first try, which needs no task."""
        if not record.delivery.undelivered:
            self._count(record, 1)
        if not self._closed:
            self._context.supervisor.call(TRIED, self._try, record, report=partial(self._go_on, record))

    def _try(self, record: Record) -> None:
        peer = record.peer
        go_on = partial(self._go_on, record, peer)
        answered = partial(self._context.supervisor.call, TRIED, self._answered, record, peer, report=go_on)
        self._call(record).add_done_callback(answered)

    def give_up(self, record: Record) -> None:
        """A higher attempt stood before this one was tried."""
        record.delivery.undelivered = False
        self._context.log.append(record, events.Delivered(None, "superseded"), self._context.on_delivered)

    def drop(self, record: Record) -> None:
        """A higher attempt stands: what is undelivered of this one is of no more use."""
        if record.delivery.undelivered:
            record.delivery.dropped = True
            record.restart_calls()

    def expire(self, record: Record) -> None:
        """Its time is up: a call that is still open is given up."""
        for call in list(record.calls):
            call.cancel()

    async def close(self) -> None:
        """Try no more: what is undelivered stays so."""
        self._closed = True
        for task in list(self._retries):
            task.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)

    def _call(self, record: Record) -> "asyncio.Future[Outcome]":
        completion = record.delivery.completion
        assert completion is not None
        self.attempts += 1
        call: asyncio.Future[Outcome]
        try:
            if record.peer.accepts_references or not has_references(completion):
                call = future(COMPLETE, record.peer.complete(completion))
            else:
                call = child(COMPLETE, self._complete_resolved(record.peer, completion))
        except Exception as error:  # what cannot be sent fails this delivery, and not the end of its rollout
            call = asyncio.get_running_loop().create_future()
            call.set_exception(error)
        record.calls.add(call)
        return call

    async def _complete_resolved(self, peer: Peer, completion: Completion) -> Outcome:
        return await peer.complete(await resolve_from_journal(completion, self._context.journal))

    def _answered(self, record: Record, peer: Peer, call: "asyncio.Future[Outcome]") -> None:
        """The first try, at `peer`, is over."""
        if not call.cancelled() and call.exception() is None:
            record.calls.discard(call)
            self._context.destinations.reached(record.peer.destination_key)
            self._settle(record, events.Delivered(call.result(), tries=1))
        else:
            self._go_on(record, peer, call=call)

    def _go_on(
        self,
        record: Record,
        peer: Peer,
        problem: BaseException | None = None,
        *,
        call: "asyncio.Future[Outcome] | None" = None,
    ) -> None:
        """Deliver in a task: the first try, at `peer`, was in vain, or raised `problem` here."""
        if not self._closed:
            task = self._context.supervisor.start(DELIVER, partial(self._deliver, record, peer, [call] if call else []))
            self._retries.add(task)
            task.add_done_callback(self._retries.discard)

    async def _deliver(self, record: Record, peer: Peer, first: "list[asyncio.Future[Outcome]]") -> None:
        """Go on from the first try until it is settled. Cancelled, it stays undelivered.

        `first` has that try, which went to `peer`, unless it is to be made anew.
        """
        assert record.delivery.ended is not None
        if not first:
            peer = record.peer
        call = first.pop() if first else self._call(record)
        gives_up = record.delivery.ended + self._context.config.record_ttl
        backoff = Backoff(*self._context.config.outbox_delay)
        tries, woken = 1, False
        while True:
            reached, asked_to_wait, pause = False, False, backoff.next()
            try:
                outcome = await call
                reached = True
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            except FINAL as error:
                reached = True
                log.warning("the completion of rollout %s was refused: %s", record.rollout_id, clip(describe(error)))
                return self._settle(record, events.Delivered(None, clip(f"refused: {describe(error)}"), tries))
            except Exception as error:
                retry_after = getattr(error, "retry_after", None)
                asked_to_wait = retry_after is not None
                if retry_after is not None:
                    pause = min(retry_after, self._context.config.outbox_delay[1])
                if tries == 1:
                    log.warning(
                        "the completion of rollout %s did not reach its trainer (%s); trying again",
                        record.rollout_id,
                        clip(describe(error)),
                    )
            finally:
                record.calls.discard(call)
                self._context.destinations.tried(record, peer.destination_key, reached=reached)
            if reached:
                return self._settle(record, events.Delivered(outcome, tries=tries))
            left = gives_up - self._context.clock.monotonic()
            if left <= 0:
                self.expired += 1
                log.error("the completion of rollout %s expired undelivered after %d tries", record.rollout_id, tries)
                return self._settle(record, events.Delivered(None, "expired", tries))
            if record.peer is peer and not record.delivery.dropped:
                # Who was told how long to wait does so; who was woken in vain waits out the next pause.
                trainer = None if asked_to_wait or woken else peer.destination_key
                woken = await self._context.destinations.wait(record, min(pause, left), trainer)
            if record.peer is not peer or record.delivery.dropped:  # that trainer is not tried again
                self._context.destinations.tried(record, peer.destination_key, reached=False)
                woken = False
            if record.delivery.dropped:
                return self._settle(record, events.Delivered(None, "superseded", tries))
            tries += 1
            peer, call = record.peer, self._call(record)

    def _settle(self, record: Record, kind: events.Delivered) -> None:
        if not record.delivery.undelivered:  # two tries were answered
            return
        failpoints.reach("outcome.before")
        self._count(record, -1)
        try:
            self._context.log.append(record, kind, self._context.on_delivered)
        except BaseException:
            self._count(record, 1)
            raise

    def _count(self, record: Record, by: int) -> None:
        record.delivery.undelivered = by > 0
        self.undelivered += by
        record.tenant.undelivered += by
