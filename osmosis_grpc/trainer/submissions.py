"""The requests of a trainer's callers: one rollout for each id, even if it is requested several times.

A request starts a new rollout, joins one that already runs, or gets an outcome from the ledger. Submissions also counts
the outcomes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, CallError, TrainerFailed, Unavailable
from osmosis_grpc.protocol.types import RolloutOutcome, RolloutRequest
from osmosis_grpc.storage.ledger import LedgerRollout
from osmosis_grpc.trainer.agent_server_link import Rollout, retrieve
from osmosis_grpc.trainer.chats.ledger_codec import init_bytes, request_of
from osmosis_grpc.trainer.chats.policy_errors import ChatKey, PolicyFailure
from osmosis_grpc.trainer.ledger_entries import abandon
from osmosis_grpc.trainer.ledger_position import LedgerPosition
from osmosis_grpc.trainer.log_warnings import EarlierOutcomes, UntrainableOutcomes
from osmosis_grpc.trainer.scheduler import Scheduler

log = logging.getLogger(__name__)

SETTLING = 5.0
"""settle() waits at most this many seconds for the outcomes of abandoned rollouts, and then as long for the ledger."""


class Submissions:
    """The rollouts that callers wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.failure: TrainerFailed | None = None
        """The error of a failed trainer. Every call raises it."""
        self.runs: dict[Callable[[TrainerFailed], None], None] = {}
        """One function for each open run(), groups() or evaluate(). fail() calls them with the error."""
        self.group_counts: Counter[str] = Counter()
        """The values of Trainer.group_counts."""
        self.position = LedgerPosition(scheduler.ledger)
        self._cache = scheduler.cache
        self._earlier = EarlierOutcomes()
        self._untrainable = UntrainableOutcomes()
        self._closed = False
        self._cache.sampler.errors.listener = self._policy_raised

    def submit(self, request: RolloutRequest, *, affinity_key: str = "") -> Rollout:
        """Queue a rollout and return it. Raises AlreadyExists, Aborted, Unavailable.

        If a rollout with this id is unfinished, return that rollout and do not queue a second one. If the ledger has an
        unconfirmed outcome of this rollout, queue nothing and return a rollout that gets this outcome. An outcome is
        unconfirmed until the application calls its confirm().
        """
        try:
            return self._submit(request, affinity_key)
        except CallError as error:
            self._cache.metrics.refused(request, error)
            raise

    def _submit(self, request: RolloutRequest, affinity_key: str) -> Rollout:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise Unavailable("the trainer is closed")
        scheduler = self.scheduler
        known = scheduler.rollouts.get(request.rollout_id)
        if known is None and scheduler.held.holds(request.rollout_id, request.attempt):
            rollout = Rollout(request, scheduler.held.fetch(request.rollout_id, request))
            rollout.done.add_done_callback(retrieve)
            return rollout
        scheduler.held.left.pop(request.rollout_id, None)
        if known is not None:
            same = replace(request, attempt=known.request.attempt)
            # A request from the ledger was decoded from bytes, so `!=` can be True for equivalent requests. Their
            # init_bytes() are equal.
            if known.request != same and init_bytes(known.request) != init_bytes(same):
                raise AlreadyExists(
                    f"rollout {request.rollout_id} already runs with another request; use a new id",
                    rollout_id=request.rollout_id,
                    attempt=known.request.attempt,
                )
            if known.abandoned:
                request = _run_again(request, known.request.attempt + 1)
            if request.attempt <= known.request.attempt:
                return known
            if scheduler.servers.given_up:
                raise scheduler.servers.why_none()
            scheduler.supersede(known, request.attempt)
        else:
            request = self._as_reserved(request)
        try:
            cache = self._cache.rollout(request.rollout_id, request.attempt, self._cache.now())
        except Aborted as error:
            raise Aborted(
                f"{error}; use a new id, or attempt={error.attempt + 1} to run it again",
                rollout_id=request.rollout_id,
                attempt=error.attempt,
            ) from None
        if cache.result_id is not None:
            raise AlreadyExists(
                f"rollout {request.rollout_id} attempt {request.attempt} is over; raise `attempt` to run it again",
                rollout_id=request.rollout_id,
                attempt=request.attempt,
            )
        if scheduler.servers.given_up:
            raise scheduler.servers.why_none()
        begun = cache.entered or cache.replaces or (known is not None and known.in_ledger)
        rollout = self._made(request, affinity_key, begun=begun)
        rollout.sent_lower = cache.reserved or cache.follows or (known is not None and (known.sent or known.sent_lower))
        cache.ended = cache.reserved = False  # a refused or cancelled rollout may run again
        scheduler.add(rollout, replaces=known is not None or cache.replaces)
        return rollout

    def restore(self, kept: Iterable[LedgerRollout]) -> None:
        """Continue the unfinished rollouts of an earlier process. `kept` has the ledger's rows of these rollouts."""
        for row in kept:
            if row.init is not None:
                opened = row.tools is not None
                rollout = self._made(request_of(row), row.affinity_key, opened=opened, begun=True)
                rollout.sent_lower = row.attempt > 1
                rollout.sent = bool(row.server_key) or not rollout.sent_lower  # a server without a journal has no key
                self.scheduler.held.left[row.rollout_id] = None
                self.scheduler.continue_at(rollout, row.server_key)
        self.scheduler.servers.wait_anew()

    def _as_reserved(self, request: RolloutRequest) -> RolloutRequest:
        reserved = self._cache.reserved(request.rollout_id)
        return request if reserved <= request.attempt else _run_again(request, reserved)

    def _made(self, request: RolloutRequest, affinity_key: str, *, begun: bool, opened: bool = False) -> Rollout:
        done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        rollout = Rollout(request, done, affinity_key, opened=opened, begun=begun)
        done.add_done_callback(partial(self._count, rollout))
        spans = self._cache.sampler.spans
        if spans is not None:
            rollout.trace = spans.begin(request, done)
        return rollout

    def _count(self, rollout: Rollout, done: "asyncio.Future[RolloutOutcome]") -> None:
        if done.cancelled() or (rollout.abandoned and done.exception() is not None):
            return
        error = done.exception()
        if error is None:
            outcome = done.result()
            self._cache.metrics.ended(outcome, self._cache.sampler.version)
            self._earlier.count(outcome)
            self._untrainable.count(outcome)
        else:
            self._cache.metrics.refused(rollout.request, error)

    def _policy_raised(self, key: ChatKey, failure: PolicyFailure | None) -> None:
        rollout = self.scheduler.rollouts.get(key[0])
        if rollout is not None:
            rollout.policy_raised(key, failure)

    def abandon(self, rollout: Rollout) -> None:
        """Cancel a rollout that no caller waits for."""
        if (
            rollout.ending
            or rollout.done.done()
            or self.scheduler.rollouts.get(rollout.request.rollout_id) is not rollout
        ):
            return
        if self._cache.is_committing(rollout.request.rollout_id):
            return  # the ledger keeps the outcome for a later request
        rollout.cancelled = rollout.abandoned = True  # a later request runs it as the next attempt
        if rollout.server is None or not rollout.sent:
            self.scheduler.end_here(rollout)
        else:
            abandon(self.scheduler, rollout)

    async def settle(self) -> None:
        """Wait for the outcomes of abandoned rollouts, and for the ledger. Call this before closing the connections.

        A server keeps each outcome until this trainer has answered, and a draining server stops only after that.
        """
        for _ in range(3):  # asyncio closes an abandoned run() within the next turns of the event loop
            await asyncio.sleep(0)
        ending = [
            r.done
            for r in self.scheduler.rollouts.values()
            if r.abandoned and r.server is not None and r.server.attached
        ]
        if ending:
            await asyncio.wait(ending, timeout=SETTLING)
        if self.scheduler.ledger is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING):
                    await self.scheduler.ledger.written()

    def fail(self, failure: TrainerFailed) -> None:
        """Fail every waiting call, and every later call, with this error."""
        self.failure = failure
        for report in list(self.runs):
            report(failure)
        self.scheduler.end_all(failure)

    def report(self) -> None:
        """Log the totals of a run."""
        self._earlier.report()
        self._cache.sampler.errors.report()

    def close(self) -> None:
        """Fail every waiting call, and every later call, with Unavailable."""
        self._closed = True
        self.report()
        self._untrainable.report()
        self.scheduler.close()


def _run_again(request: RolloutRequest, attempt: int) -> RolloutRequest:
    """Return the request as a higher attempt, because no caller has the outcome of an earlier attempt."""
    attempt = max(request.attempt, attempt)
    log.info("rollout %s runs again as attempt %d: %s", request.rollout_id, attempt, "no caller has an outcome of it")
    return replace(request, attempt=attempt)
