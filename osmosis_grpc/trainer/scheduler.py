"""Sends each rollout to an agent server. Runs the rollouts of a lost server elsewhere."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    Internal,
    LedgerError,
    NotFound,
    Superseded,
    TrainerFailed,
    Unavailable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.protocol.wire.features import FORK
from osmosis_grpc.storage.ledger import Ledger, LedgerRollout
from osmosis_grpc.supervise import Backoff, OnFailure, Supervisor, job
from osmosis_grpc.trainer.agent_server_state import (
    LOST_PAUSES,
    AgentServerLink,
    Owner,
    Report,
    Rollout,
    RolloutKey,
    job_failed,
    retrieve,
)
from osmosis_grpc.trainer.chats.attempt_cache import UNWRITTEN_RETRY
from osmosis_grpc.trainer.chats.chat_cache import ChatCache
from osmosis_grpc.trainer.chats.ledger_codec import init_bytes, request_of
from osmosis_grpc.trainer.chats.policy_errors import ChatKey, PolicyFailure
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.outcome_recorder import OutcomeRecorder
from osmosis_grpc.trainer.outcome_warnings import EarlierOutcomes, UntrainableOutcomes
from osmosis_grpc.trainer.placement import Placement
from osmosis_grpc.trainer.rollout_queue import RolloutQueue
from osmosis_grpc.trainer.server_availability import LOST, Servers
from osmosis_grpc.trainer.unconfirmed_outcomes import UnconfirmedOutcomes
from osmosis_grpc.trainer.unreachable_warnings import warn_draining

log = logging.getLogger(__name__)

TAKE = job("trainer.take_outcome", OnFailure.REPORT, "callback")
SEND_AGAIN = job("trainer.send_again", OnFailure.REPORT, "timer")

CANCEL_RETRY = 5.0
"""A cancel that a server refused is repeated after this many seconds."""

SETTLING = 5.0
"""settle() waits at most this many seconds for the outcomes of abandoned rollouts.

After that, it waits at most this many seconds for the ledger.
"""


class Scheduler(Owner):
    """The unfinished rollouts of a trainer."""

    def __init__(
        self, cache: ChatCache, supervisor: Supervisor, *, config: TrainerConfig, ledger: Ledger | None = None
    ) -> None:
        self.cache = cache
        self.supervisor = supervisor
        self.process_id = supervisor.system.new_id()
        self.failure: TrainerFailed | None = None
        """The error of a failed trainer. Every call raises this error."""
        self.runs: dict[Callable[[TrainerFailed], None], None] = {}
        """One function for each open run(), groups() or evaluate(). fail() calls each of these functions."""
        self.ledger = ledger
        self.held = UnconfirmedOutcomes(ledger)
        self.earlier = EarlierOutcomes()
        self._untrainable = UntrainableOutcomes()
        self.rollouts: dict[str, Rollout] = {}
        self.group_counts: Counter[str] = Counter()
        """The values of Trainer.group_counts."""
        self.servers = Servers(
            supervisor, config=config, lost=self._lost, stuck=self._stuck, none_attached=self._none_attached
        )
        self._outcomes = OutcomeRecorder(cache, self.rollouts, self._recorded, self.refused, supervisor)
        self.placement = Placement(self.servers, self.rollouts)
        self._max_attempts = config.max_attempts
        self._queue = RolloutQueue()
        self._loop = asyncio.get_running_loop()
        self._returning: set[asyncio.TimerHandle] = set()
        self._first_answers: asyncio.TimerHandle | None = None
        """Runs while rollouts wait for the first answers of new servers."""
        self._closed = False
        cache.sampler.errors.listener = self._policy_raised

    def _policy_raised(self, key: ChatKey, failure: PolicyFailure | None) -> None:
        rollout = self.rollouts.get(key[0])
        if rollout is not None:
            rollout.policy_raised(key, failure)

    def submit(self, request: RolloutRequest, *, affinity_key: str = "") -> Rollout:
        """Queue a rollout and return it. Raises AlreadyExists, Aborted, Unavailable.

        If a rollout with this id is unfinished, returns that rollout and queues no second one. An outcome in the
        ledger is unconfirmed until the application calls its confirm(). If the ledger has an unconfirmed outcome of
        this rollout, queues nothing and returns a rollout that gets this outcome.
        """
        try:
            return self._submit(request, affinity_key)
        except CallError as error:
            self.cache.metrics.refused(request, error)
            raise

    def _submit(self, request: RolloutRequest, affinity_key: str) -> Rollout:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise Unavailable("the trainer is closed")
        known = self.rollouts.get(request.rollout_id)
        if known is None and self.held.holds(request.rollout_id, request.attempt):
            rollout = Rollout(request, self.held.fetch(request.rollout_id, request))
            rollout.done.add_done_callback(retrieve)
            return rollout
        self.held.left.pop(request.rollout_id, None)
        if known is not None:
            same = replace(request, attempt=known.request.attempt)
            # A request from the ledger was decoded from bytes. So `!=` can be True although the two requests mean the
            # same. init_bytes() returns the same bytes for both.
            if known.request != same and init_bytes(known.request) != init_bytes(same):
                raise AlreadyExists(
                    f"rollout {request.rollout_id} already runs with another request; use a new id",
                    rollout_id=request.rollout_id,
                    attempt=known.request.attempt,
                )
            if request.attempt <= known.request.attempt:
                return known
            self._supersede(known, request.attempt)
        try:
            cache = self.cache.rollout(request.rollout_id, request.attempt, self.cache.now())
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
        if self.servers.given_up:
            raise self.servers.why_none()
        cache.ended = False  # a refused or cancelled rollout may run again
        begun = cache.entered or cache.replaces or (known is not None and known.in_ledger)
        rollout = Rollout(request, self._loop.create_future(), affinity_key, begun=begun)
        rollout.done.add_done_callback(partial(self._count, request))
        self._trace(rollout)
        self.rollouts[request.rollout_id] = rollout
        if known is not None or cache.replaces:
            self._enter(rollout)
        self._queue.add(rollout)
        self.changed()
        return rollout

    def restore(self, kept: Iterable[LedgerRollout]) -> None:
        """Continue the unfinished rollouts of an earlier process. `kept` has the ledger's rows of these rollouts."""
        by_key = {server.server_key: server for server in self.servers}
        for row in kept:
            if row.init is None:
                continue
            rollout = Rollout(
                request_of(row), self._loop.create_future(), row.affinity_key, opened=row.tools is not None, begun=True
            )
            rollout.done.add_done_callback(partial(self._count, rollout.request))
            self._trace(rollout)
            self.rollouts[row.rollout_id] = rollout
            self.held.left[row.rollout_id] = None
            server = by_key.get(row.server_key)
            if server is not None:
                self.placement.add(rollout, server)
                server.adopt(rollout)
            else:
                name = row.server_key or "the server of the earlier attempt"
                self.restart(rollout, f"{name} is no longer one of this trainer's servers")
        self.servers.wait_anew()

    def _trace(self, rollout: Rollout) -> None:
        """Begin the span of a rollout if traces are on."""
        spans = self.cache.sampler.spans
        if spans is not None:
            rollout.trace = spans.begin(rollout.request, rollout.done)

    def forget(self, rollout: Rollout) -> None:
        """Remove a rollout that has ended or that no caller waits for."""
        if self.rollouts.get(rollout.request.rollout_id) is rollout:
            del self.rollouts[rollout.request.rollout_id]
        if rollout.server is not None:
            rollout.server.release(rollout)

    def refused(self, rollout: Rollout, error: CallError | LedgerError) -> None:
        if isinstance(error, Aborted) and error.attempt > rollout.request.attempt:
            error = _superseded(rollout.key, error.attempt)
        self._end_without_outcome(rollout, partial(rollout.done.set_exception, error))

    def unwritten(self, rollout: Rollout, error: LedgerError) -> None:
        """Handle a rollout whose Init the ledger could not commit.

        If the ledger already has an attempt of the rollout, send the rollout again later. Otherwise refuse the rollout.
        """
        rollout.written = True  # the ledger does not have this Init
        if rollout.begun:
            self.put_back(rollout, UNWRITTEN_RETRY)
        else:
            self.refused(rollout, error)
        self.changed()

    def _end_without_outcome(self, rollout: Rollout, end: Callable[[], None]) -> None:
        """Stop a rollout that has no outcome of its server, drop it from the ledger, and then call `end`.

        Its callers wait for the commit. Otherwise a rollout that has ended would run again after a crash.
        """
        if rollout.ending:
            return
        rollout.ending = True
        self.cache.end(*rollout.key)
        if rollout.server is None:
            self._queue.remove(rollout)
        else:
            rollout.server.release(rollout)
            rollout.server = None
        self._loop.call_soon(self.changed)  # its slot is free
        ledger = self.ledger if rollout.in_ledger else None

        def drop() -> None:
            if rollout.done.done():
                return
            if ledger is None:
                self.cache.entered(*rollout.key, dropped=True)
                self._cancel_leaving(rollout)
                self.forget(rollout)
                end()
            else:
                ledger.drop(*rollout.key, dropped)

        def dropped(_: Any, error: LedgerError | None) -> None:
            nonlocal ledger
            if error is None:
                ledger = None
                drop()
            else:
                self._later(UNWRITTEN_RETRY, drop, fail)

        def fail(error: BaseException) -> None:
            self.forget(rollout)
            if not rollout.done.done():
                rollout.done.set_exception(job_failed(SEND_AGAIN, error))

        drop()

    def abandon(self, rollout: Rollout) -> None:
        """Cancel a rollout that no caller waits for."""
        if rollout.ending or rollout.done.done() or self.rollouts.get(rollout.request.rollout_id) is not rollout:
            return
        rollout.cancelled = rollout.abandoned = True
        if rollout.server is None:
            self.end_here(rollout)
        else:
            cancelled = rollout.server.cancel(rollout.request.rollout_id, "its caller has left")
            cancelled.add_done_callback(retrieve)

    def end_here(self, rollout: Rollout) -> None:
        """End a rollout that no server has. The status of its outcome is CANCELLED."""
        rollout_id, attempt = rollout.key
        outcome = RolloutOutcome(
            rollout_id=rollout_id,
            attempt=attempt,
            status=OutcomeStatus.CANCELLED,
            finish_reason="cancelled",
            group=rollout.request.group,
            evaluation=rollout.request.evaluation,
        )
        self._end_without_outcome(rollout, partial(rollout.done.set_result, outcome))

    def _supersede(self, rollout: Rollout, attempt: int) -> None:
        """End a rollout, because a caller asks for the higher attempt `attempt`. Its callers get Superseded."""
        self._queue.remove(rollout)
        if rollout.server is not None:
            rollout.server.abandon(rollout)
        self.forget(rollout)
        if not rollout.done.done():
            rollout.done.set_exception(_superseded(rollout.key, attempt))

    def superseded(self, rollout_id: str, attempt: int, newest: int = 0) -> None:
        """End an attempt that another attempt has replaced. Its callers get Superseded.

        `newest` is the number of the other attempt; 0 if it is unknown. Does nothing if the rollout has ended, or runs
        as another attempt.
        """
        rollout = self.rollouts.get(rollout_id)
        if rollout is not None and rollout.request.attempt == attempt:
            self.refused(rollout, _superseded(rollout.key, newest))
            self.changed()

    def lost(self, rollout: Rollout, why: str) -> None:
        """Run a lost rollout again after a pause. After `max_attempts` losses, end the rollout with an error.

        Without the pause, a server that forgets its rollouts would use up all attempts at once.
        """
        rollout.losses.append(f"attempt {rollout.request.attempt}: {why}")
        losses = len(rollout.losses)
        if losses < self._max_attempts or rollout.cancelled:
            rollout.backoff = rollout.backoff or Backoff(*LOST_PAUSES, system=self.supervisor.system)
            self.restart(rollout, why, rollout.backoff.next())
            return
        name = rollout.request.rollout_id
        self.refused(rollout, Unavailable(f"rollout {name} was lost {losses} times: {'; '.join(rollout.losses)}"))
        self.changed()

    def restart(self, rollout: Rollout, why: str, after: float = 0.0) -> None:
        """Run a rollout again after `after` seconds, on any server and with a higher attempt.

        A cancelled rollout does not run again. It ends instead.
        """
        if rollout.server is not None:
            rollout.server.release(rollout)
            rollout.server = None
        if rollout.ending or rollout.done.done():
            return
        if rollout.cancelled:
            self.end_here(rollout)
            return
        attempt = rollout.request.attempt + 1
        log.info("rollout %s runs again as attempt %d: %s", rollout.request.rollout_id, attempt, why)
        rollout.request = replace(rollout.request, attempt=attempt)
        rollout.opened = False
        rollout.raised.clear()
        self.cache.rollout(rollout.request.rollout_id, attempt, self.cache.now())
        self._enter(rollout)
        if after:
            self._send_later(rollout, after)
        else:
            self._queue.add(rollout, first=True)
        self._loop.call_soon(self.changed)

    def _enter(self, rollout: Rollout) -> None:
        """Record a higher attempt in the ledger before any server gets it, and then end the lower attempts.

        A rollout can wait long for a slot, and the lower attempt possibly has this slot.
        """
        key = rollout.key
        if self.ledger is None or not rollout.begun:
            self._cancel_leaving(rollout)
            return

        def committed(_: Any, error: LedgerError | None) -> None:
            if error is None:  # also if the rollout has ended meanwhile: its lower attempts wait for this commit
                self.cache.entered(*key)
                self._cancel_leaving(rollout)
            elif self._enters(rollout, key):
                again = partial(self._enter_again, rollout, key)
                self._later(UNWRITTEN_RETRY, again, lambda error: self.refused(rollout, job_failed(SEND_AGAIN, error)))

        self.ledger.record_assignment(*key, init_bytes(rollout.request), "", rollout.affinity_key, committed)

    def _enter_again(self, rollout: Rollout, key: RolloutKey) -> None:
        if self._enters(rollout, key):
            self._enter(rollout)

    def _enters(self, rollout: Rollout, key: RolloutKey) -> bool:
        """Returns whether an attempt still has to enter the ledger alone. One with a server enters with its server."""
        newest = self.rollouts.get(key[0], rollout) is rollout and rollout.key == key
        return newest and rollout.server is None and not rollout.ending

    def entered(self, rollout: Rollout) -> None:
        self.cache.entered(*rollout.key)
        self._cancel_leaving(rollout)

    def _cancel_leaving(self, rollout: Rollout) -> None:
        """Cancel the lower attempts of a rollout at their servers, if the ledger has the newest attempt."""
        for server in self.servers:
            if server.leaving and server.attached:
                server.cancel_leaving(rollout.request.rollout_id)

    def cancel_later(self, server: AgentServerLink, rollout_id: str) -> None:
        def again() -> None:
            if server.attached:  # the next connection repeats all cancels
                server.cancel_leaving(rollout_id)

        self._later(CANCEL_RETRY, again, lambda error: None)  # without it, the next connection repeats the cancel

    def put_back(self, rollout: Rollout, after: float) -> None:
        rollout.server = None
        if rollout.cancelled:
            self.end_here(rollout)
        else:
            self._send_later(rollout, after)

    def put_elsewhere(self, rollout: Rollout, server: AgentServerLink, error: CallError) -> bool:
        if rollout.request.fork is None or not isinstance(error, NotFound) or error.kind != "rollout":
            return False
        rollout.without_original.append(server)
        if not self.placement.may_go_elsewhere(rollout):
            return False
        self.put_back(rollout, 0.0)
        return True

    def _send_later(self, rollout: Rollout, after: float) -> None:
        def again() -> None:
            if not rollout.ending and not rollout.done.done():
                self._queue.add(rollout, first=True)
                self.changed()

        self._later(after, again, lambda error: self.refused(rollout, job_failed(SEND_AGAIN, error)))

    def _later(
        self, after: float, call: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> asyncio.TimerHandle:
        """Call a function after `after` seconds, unless the trainer is closed before."""

        def now() -> None:
            self._returning.discard(timer)
            call()

        timer = self.supervisor.call_later(SEND_AGAIN, after, now, report=fail)
        self._returning.add(timer)
        return timer

    def warn_if_all_drain(self) -> None:
        """Log a warning if rollouts wait because all servers drain."""
        names = self.servers.draining
        waiting = sum(rollout.server is None for rollout in self.rollouts.values()) if names else 0
        if waiting:
            warn_draining(names, waiting)

    def changed(self) -> None:
        wait = self.servers.first_answers_missing
        if not wait:
            self._queue.send(self._sent)
        elif self._first_answers is None:
            self._first_answers = self._later(wait, self._no_more_answers, lambda error: self._no_more_answers())

    def _no_more_answers(self) -> None:
        self._first_answers = None
        self.changed()

    def _sent(self, rollout: Rollout) -> bool:
        """Send a rollout to a server. Returns False if no server has a free slot for the rollout."""
        try:
            server = self.placement.server_for(rollout)
            if server is None:
                return False
            if rollout.request.fork is not None and FORK not in server.features:
                self.refused(rollout, Unimplemented(f"agent server {server.name} cannot fork: its version is too old"))
                return True
            self.placement.add(rollout, server)
            server.start(rollout)
        except Exception as error:
            problem = job_failed(SEND_AGAIN, error)
            self.supervisor.failed(SEND_AGAIN, error, lambda _: self.refused(rollout, problem))
        return True

    # Calls of the servers.

    def completed(self, report: Report) -> None:
        """Record an outcome and answer its server, as OutcomeRecorder.record() does. Raises CallError.

        An earlier process of this trainer may have begun a higher attempt and lost it with its end. Then the server has
        ended the newest attempt as superseded, and the rollout runs again.
        """
        refusals: list[CallError] = []

        def take() -> None:
            rollout = self.rollouts.get(report.outcome.rollout_id)
            if rollout is not None and not rollout.ending and _is_superseded(report.outcome, rollout.key):
                self.lost(rollout, "its server has ended it for a higher attempt of an earlier process")
            try:
                self._outcomes.record(report)
            except CallError as error:
                refusals.append(error)

        self.supervisor.call(TAKE, take, report=partial(self._outcomes.fail, report, TAKE))
        if refusals:
            raise refusals[0]

    def unusable(self, server: AgentServerLink | None, rollout_id: str, attempt: int, problem: BaseException) -> None:
        rollout = self.rollouts.get(rollout_id)
        if rollout is not None and server in (None, rollout.server) and attempt in (0, rollout.request.attempt):
            name = f"server {rollout.server.name}" if rollout.server is not None else "its server"
            self.refused(
                rollout, Internal(f"the outcome of rollout {rollout_id} from {name} cannot be used: {problem}")
            )
            self.changed()

    def _recorded(self, rollout: Rollout, outcome: RolloutOutcome) -> None:
        """End a rollout whose outcome is recorded."""
        if rollout.server is not None:
            self.placement.recent_servers.add(outcome.rollout_id, rollout.server)
        if not rollout.done.done():
            rollout.done.set_result(outcome)
        self.forget(rollout)
        self.earlier.count(outcome)
        self._untrainable.count(outcome)
        self.changed()

    def _count(self, request: RolloutRequest, done: "asyncio.Future[RolloutOutcome]") -> None:
        """Count the outcome of an ended rollout."""
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.cache.metrics.ended(done.result(), self.cache.sampler.version)
        else:
            self.cache.metrics.refused(request, error)

    def remove(self, server: AgentServerLink, why: str) -> None:
        """Forget a server that is no longer named. Its rollouts run elsewhere at once, with a higher attempt."""
        self.servers.remove(server)
        server.lost(Unavailable(why))
        self.placement.leave(server)
        for rollout in list(server.rollouts.values()):
            self.restart(rollout, why)
        self.changed()

    def _lost(self, server: AgentServerLink, why: str) -> None:
        """Run the rollouts of a lost server again."""
        self.placement.leave(server)
        for rollout in list(server.rollouts.values()):
            self.lost(rollout, why)

    def _stuck(self, server: AgentServerLink, error: BaseException) -> None:
        """End the rollouts of a lost server, because _lost() failed to run them again."""
        for rollout in list(server.rollouts.values()):
            self.refused(rollout, job_failed(LOST, error))

    def _none_attached(self, error: CallError) -> None:
        """End the rollouts that wait for a server. `error` says why no server is attached."""
        waiting = [
            rollout
            for rollout in self.rollouts.values()
            if not rollout.ending and (rollout.server is None or rollout.server.refusal is not None)
        ]
        for rollout in waiting:
            self.forget(rollout)
            if not rollout.done.done():
                rollout.done.set_exception(error)

    async def settle(self) -> None:
        """Wait for the outcomes of abandoned rollouts, and for the ledger, before the connections are closed.

        A server keeps each outcome until this trainer has answered it. A draining server stops only after these
        answers. So this trainer answers before it closes the connections.
        """
        for _ in range(3):  # asyncio closes an abandoned run() within the next turns of the event loop
            await asyncio.sleep(0)
        ending = [r.done for r in self.rollouts.values() if r.abandoned and r.server is not None and r.server.attached]
        if ending:
            await asyncio.wait(ending, timeout=SETTLING)
        if self.ledger is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLING):
                    await self.ledger.written()

    def fail(self, failure: TrainerFailed) -> None:
        """Raise this error from every waiting call and from every later call."""
        self.failure = failure
        for report in list(self.runs):
            report(failure)
        self._end(failure)

    def report(self) -> None:
        """Log the totals of a run."""
        self.earlier.report()
        self.cache.sampler.errors.report()

    def close(self) -> None:
        """Raise Unavailable from every waiting call."""
        self._closed = True
        self.report()
        self._untrainable.report()
        for timer in self._returning:
            timer.cancel()
        self._outcomes.close()
        self._end(Unavailable("the trainer was closed"))
        self.cache.close()

    def _end(self, error: Exception) -> None:
        self.servers.close(error)
        for rollout in self.rollouts.values():
            if not rollout.done.done():
                rollout.done.set_exception(error)
        self.rollouts.clear()


def _is_superseded(outcome: RolloutOutcome, key: RolloutKey) -> bool:
    """Return whether a server has ended this attempt for a higher one."""
    ended = outcome.status is OutcomeStatus.CANCELLED and outcome.finish_reason == "superseded"
    return ended and (outcome.rollout_id, outcome.attempt) == key


def _superseded(key: RolloutKey, newest: int) -> Superseded:
    """Returns the error for the callers of an attempt that ends without an outcome."""
    rollout_id, attempt = key
    by = f"attempt {newest}" if newest else "another attempt"
    return Superseded(
        f"attempt {attempt} of rollout {rollout_id} ends without an outcome: {by} has replaced it",
        rollout_id=rollout_id,
        attempt=newest,
    )
