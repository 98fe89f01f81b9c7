"""Delivers each outcome to its trainer at least once.

Theory of operation. An outcome is delivered when the trainer has answered it and the answer is in the journal. The
outbox starts only after the end is committed. If the process crashes before this commit, the rollout runs again. If it
crashes after it, the next process delivers the same outcome with the same result id. The trainer recognizes the id, so
it applies the outcome only once.

There are three ways of sending, and a rollout has at most one of each at a time:

- The *first try* (_try) needs no task, because nearly all outcomes are accepted at once.
- The *delivery* (_deliver) is the task that continues after a failed first try. It ends, and settles the rollout, in
  one of four ways: the trainer sends a receipt; the trainer refuses the outcome for good (FINAL); `record_ttl` is over
  (expired); or a higher attempt has replaced the rollout (superseded).
- A *resend* (_resend) follows if an equal Init arrives for a rollout that is already settled, because the trainer that
  got the outcome may be gone. No event records a resend. It gives up after `trainer_grace`.

The rules:

- Only _settle() settles a rollout, and it does nothing if the rollout is settled already. So if both the first try and
  the delivery get an answer, only one counts.
- `undelivered` is counted in one place, _count(), for the outbox and the tenant together.
- If the rollout gets a new callback address, its calls are cancelled (Record.restart_calls), and the next try goes to
  the new peer at once, because the trainer has not failed. Only if the delivery's own task is cancelled, the outcome
  stays undelivered, for the next process.
- An equal Init during an open delivery does not start a second one. But the open call may be older than the Init, and
  so not answer it. Therefore a resend follows the delivery (_resend_after).
- If the trainer sent a retry_after, the pause is that long. Otherwise pauses grow, and end early when another call
  shows that the trainer is back (Destinations). Of two waits in a row, only one may end early, so that an outcome that
  always fails is not sent after each chat.
- An error in the outbox's own code settles nothing. The supervisor starts the delivery again.
"""

import asyncio
import logging
from collections.abc import Hashable
from functools import partial

from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.recorded_chats import has_references, resolve_from_journal
from osmosis_grpc.protocol.errors import Aborted, CallError, InvalidArgument, ResourceExhausted, Unimplemented
from osmosis_grpc.protocol.types import Receipt, RolloutOutcome, events
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.supervise import Backoff, OnFailure, child, future, job

log = logging.getLogger(__name__)

COMPLETE = job("engine.complete", OnFailure.RAISE)
TRIED = job("engine.first_delivery", OnFailure.REPORT, "callback")
DELIVER = job("engine.deliver", OnFailure.RESTART)
RESEND = job("engine.resend", OnFailure.RESTART)

FINAL = (InvalidArgument, Aborted, Unimplemented)
"""If a trainer refuses an outcome with one of these errors, it will never record it, so there is no retry."""
MAX_RESENDS = 1024
"""At most this many resends are open at once."""


class Outbox:
    """Delivers outcomes, and counts the undelivered ones."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._closed = False
        self._resends: set[Hashable] = set()
        self._resend_after: set[Record] = set()
        """The rollouts for which an equal Init came during the delivery. A resend follows."""
        self.attempts = 0
        """The number of tries of all deliveries. Resends are not counted."""
        self.undelivered = 0
        self.expired = 0
        """The number of outcomes that were not delivered within record_ttl."""

    def put(self, record: Record) -> None:
        """Start to deliver the outcome of an ended rollout. Only retries need a task."""
        if not record.delivery.undelivered:
            self._count(record, 1)
        if not self._closed:
            self._context.supervisor.call(TRIED, self._try, record, report=lambda error: self._retry(record))

    def _try(self, record: Record) -> None:
        answered = partial(self._answered, record, record.peer)
        over = partial(self._context.supervisor.call, TRIED, answered, report=lambda error: self._retry(record))
        self._call(record).add_done_callback(over)

    def give_up(self, record: Record) -> None:
        """Settle a rollout without a delivery, because a higher attempt replaced it before the first try."""
        record.delivery.undelivered = False
        self._context.log.append(record, events.Delivered(None, "superseded"), self._context.on_delivered)

    def drop(self, record: Record) -> None:
        """Stop delivering the outcome of a rollout, because a higher attempt replaces the rollout."""
        if record.delivery.undelivered:
            record.delivery.dropped = True
            record.restart_calls()

    def resend(self, record: Record) -> None:
        """Send the outcome of an ended rollout to the rollout's peer again.

        If the first delivery is still open, the resend begins after that delivery. Raises ResourceExhausted if
        MAX_RESENDS resends are already open.
        """
        if record.delivery.undelivered:
            self._resend_after.add(record)
        elif len(self._resends) >= MAX_RESENDS:
            raise ResourceExhausted(f"{MAX_RESENDS} resends of outcomes are already open; retry later", retry_after=1.0)
        else:
            self._begin_resend(record)

    def delivered(self, record: Record) -> None:
        """Start the resend after the first delivery if an equal Init came during this delivery."""
        if record in self._resend_after:
            self._resend_after.discard(record)
            self._begin_resend(record)

    def close(self) -> None:
        """Begin no further delivery. The supervisor ends the open ones, whose outcomes stay undelivered."""
        self._closed = True

    def _call(self, record: Record) -> "asyncio.Future[Receipt]":
        outcome = record.delivery.outcome
        assert outcome is not None
        self.attempts += 1
        try:
            call = self._send(record.peer, outcome)
        except Exception as error:  # the error ends only this try, and must not reach the caller of put()
            call = asyncio.get_running_loop().create_future()
            call.set_exception(error)
        record.calls[call] = None
        return call

    def _send(self, peer: Peer, outcome: RolloutOutcome) -> "asyncio.Future[Receipt]":
        """Send an outcome once.

        An outcome may refer to chats instead of containing their messages and tokens. If the peer does not keep its
        replies, the references are first replaced by messages and tokens from the journal.
        """
        if peer.accepts_references or not has_references(outcome):
            return future(COMPLETE, peer.complete(outcome))

        async def resolved() -> Receipt:
            return await peer.complete(await resolve_from_journal(outcome, self._context.journal))

        return child(COMPLETE, resolved())

    def _answered(self, record: Record, peer: Peer, call: "asyncio.Future[Receipt]") -> None:
        """Handle the end of the first try of a delivery. This try called `peer`."""
        if not call.cancelled() and call.exception() is None:
            record.calls.pop(call, None)
            self._context.destinations.reached(record.peer.destination_key)
            self._settle(record, events.Delivered(call.result(), tries=1))
        else:
            self._retry(record, (peer, call))

    def _retry(self, record: Record, *first: "tuple[Peer, asyncio.Future[Receipt]]") -> None:
        """Continue a delivery in a task. If the first try made a call, `first` is the peer and this call."""
        if not self._closed:
            self._context.supervisor.start(DELIVER, partial(self._deliver, record, list(first)))

    async def _deliver(self, record: Record, first: "list[tuple[Peer, asyncio.Future[Receipt]]]") -> None:
        """Retry until the delivery is settled. If the task is cancelled, the outcome stays undelivered."""
        assert record.delivery.ended is not None
        peer, call = first.pop() if first else (record.peer, self._call(record))
        gives_up = record.delivery.ended + self._context.config.record_ttl
        backoff = Backoff(*self._context.config.outbox_delay, system=self._context.system)
        tries, woken = 1, False
        while True:
            reached, asked_to_wait, pause = False, False, backoff.next()
            try:
                receipt = await call
                reached = True
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            except FINAL as error:
                reached = True
                log.warning("the outcome of rollout %s was refused: %s", record.rollout_id, clip(describe(error)))
                return self._settle(record, events.Delivered(None, clip(f"refused: {describe(error)}"), tries))
            except Exception as error:
                retry_after = getattr(error, "retry_after", None)
                asked_to_wait = retry_after is not None
                if retry_after is not None:
                    pause = min(retry_after, self._context.config.outbox_delay[1])
                if tries == 1:
                    log.warning(
                        "the outcome of rollout %s did not reach its trainer (%s); trying again",
                        record.rollout_id,
                        clip(describe(error)),
                    )
            finally:
                record.calls.pop(call, None)
                self._context.destinations.tried(record, peer.destination_key, reached=reached)
            if reached:
                return self._settle(record, events.Delivered(receipt, tries=tries))
            left = gives_up - self._context.system.monotonic()
            if left <= 0:
                self.expired += 1
                log.error("the outcome of rollout %s expired undelivered after %d tries", record.rollout_id, tries)
                return self._settle(record, events.Delivered(None, "expired", tries))
            if record.peer is peer and not record.delivery.dropped:
                # If another call reaches the trainer, this wait ends early, unless the trainer sent a retry_after, or
                # the wait before the failed try ended early.
                trainer = None if asked_to_wait or woken else peer.destination_key
                woken = await self._context.destinations.wait(record, min(pause, left), trainer)
            if record.peer is not peer or record.delivery.dropped:  # this delivery does not call `peer` again
                self._context.destinations.tried(record, peer.destination_key, reached=False)
                woken = False
            if record.delivery.dropped:
                return self._settle(record, events.Delivered(None, "superseded", tries))
            tries += 1
            peer, call = record.peer, self._call(record)

    def _begin_resend(self, record: Record) -> None:
        assert record.delivery.outcome is not None
        key = record.rollout_id, record.attempt, record.peer.key
        if key not in self._resends:
            self._resends.add(key)
            give_up = asyncio.get_running_loop().time() + self._context.config.trainer_grace
            resend = partial(self._resend, record.peer, record.delivery.outcome, give_up)
            task = self._context.supervisor.start(RESEND, resend)
            task.add_done_callback(lambda _: self._resends.discard(key))

    async def _resend(self, peer: Peer, outcome: RolloutOutcome, give_up: float) -> None:
        """Send an outcome until the trainer has answered it, or until the event loop's time is `give_up`."""
        backoff = Backoff(*self._context.config.outbox_delay, system=self._context.system)
        while True:
            try:
                await self._send(peer, outcome)
                return
            except Exception as error:
                pause = backoff.next()
                if isinstance(error, CallError) and error.retry_after is not None:
                    pause = error.retry_after
                if isinstance(error, FINAL) or asyncio.get_running_loop().time() + pause > give_up:
                    log.warning(
                        "the trainer asked again for the outcome of rollout %s, but the resend has failed: %s",
                        outcome.rollout_id,
                        clip(describe(error)),
                    )
                    return
            await asyncio.sleep(pause)

    def _settle(self, record: Record, kind: events.Delivered) -> None:
        if not record.delivery.undelivered:  # another try has settled it
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
