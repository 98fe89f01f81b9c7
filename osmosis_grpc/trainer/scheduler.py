"""Scheduler sends each rollout to an agent server, and runs the rollouts of a lost server elsewhere.

Theory of operation. An unfinished rollout is in one of these states. The right column shows the fields of Rollout that
tell:

    queued     no server has it: it waits in the queue, or for a timer that queues it again    server is None
    assigned   a server is chosen; with a ledger, the Init waits for its commit                not written
    sent       the Init is sent on this connection, and again on the next one                  written, not opened
    open       the server has accepted the Init                                                opened
    ending     it ends without an outcome from its server: refused, superseded or cancelled    ending

If a server refuses an attempt for now, the rollout returns to the queue. If a server is lost or has forgotten the
rollout, a higher attempt is queued. In the end, `done` has the outcome or an error, and `rollouts` loses the rollout.

Rules that every change must keep:

- Only the newest attempt counts. `rollouts` has it. Lower attempts may still run, but only as entries in `leaving` of
  their servers, where they use slots until the servers have cancelled them.
- The ledger is written before a message is sent, except where a crash loses nothing; see ledger_entries.py.
- No caller waits forever. Each rollout has a server, a place in the queue or a timer, or it is ending. An error in the
  background ends the rollout with that error.
- Links only report; the scheduler decides. It does not depend on the transport, and it never awaits. Each method leaves
  a consistent state, so commits, timers and frames may come in any order.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from osmosis_grpc.protocol.errors import (
    Aborted,
    CallError,
    LedgerError,
    NotFound,
    Superseded,
    Unavailable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.wire.control import FORK
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.supervise import Backoff, OnFailure, Supervisor, job
from osmosis_grpc.trainer.agent_server_link import (
    LOST_PAUSES,
    AgentServerLink,
    Rollout,
    RolloutKey,
    SchedulerPort,
    job_failed,
)
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.ledger_entries import UnconfirmedOutcomes, assign, drop, enter
from osmosis_grpc.trainer.log_warnings import warn_draining
from osmosis_grpc.trainer.outcome_recorder import OutcomeRecorder
from osmosis_grpc.trainer.placement import Placement, RolloutQueue
from osmosis_grpc.trainer.server_availability import LOST, Servers

log = logging.getLogger(__name__)

SEND_AGAIN = job("trainer.send_again", OnFailure.REPORT, "timer")

CANCEL_RETRY = 5.0
"""If a server refuses a cancel, it is sent again after this many seconds."""


class Scheduler(SchedulerPort):
    """The unfinished rollouts of a trainer."""

    def __init__(
        self, cache: RolloutCache, supervisor: Supervisor, *, config: TrainerConfig, ledger: SqliteLedger | None = None
    ) -> None:
        self.cache = cache
        self.supervisor = supervisor
        self.process_id = supervisor.system.new_id()
        self.ledger = ledger
        self.held = UnconfirmedOutcomes(ledger)
        self.rollouts: dict[str, Rollout] = {}
        self.servers = Servers(
            supervisor, config=config, lost=self._lost, stuck=self._stuck, none_attached=self._none_attached
        )
        self._outcomes = OutcomeRecorder(self)
        self.take_outcome = self._outcomes.take
        self.placement = Placement(self.servers, self.rollouts, self._outcomes.recent_servers)
        self._max_attempts = config.max_attempts
        self._queue = RolloutQueue()
        self._loop = asyncio.get_running_loop()
        self._returning: set[asyncio.TimerHandle] = set()
        self._first_answers: asyncio.TimerHandle | None = None
        """The timer that ends the wait for the first answers of new servers; None if rollouts do not wait."""

    def forget(self, rollout: Rollout) -> None:
        if self.rollouts.get(rollout.request.rollout_id) is rollout:
            del self.rollouts[rollout.request.rollout_id]
        if rollout.server is not None:
            rollout.server.release(rollout)

    def refused(self, rollout: Rollout, error: CallError | LedgerError) -> None:
        if isinstance(error, Aborted) and error.attempt > rollout.request.attempt:
            error = rollout.superseded(error.attempt)
        if isinstance(error, Superseded):  # the next attempt may be that of another trainer
            rollout.sent = rollout.sent_lower = False
        self._end_without_outcome(rollout, partial(rollout.done.set_exception, error))

    def _end_without_outcome(self, rollout: Rollout, end: Callable[[], None]) -> None:
        """Stop a rollout without an outcome from its server, drop it from the ledger, and then call `end`."""
        if rollout.ending:
            return
        rollout.ending = True
        self.cache.end(*rollout.key)
        if rollout.server is None:
            self._queue.remove(rollout)
        else:
            rollout.server.release(rollout)
            rollout.server = None
        self._loop.call_soon(self.changed)  # its slot is now free

        def dropped() -> None:
            if not rollout.done.done():
                rollout_id, attempt = rollout.key
                if rollout.sent or rollout.sent_lower:
                    self.cache.reserve(rollout_id, attempt + 1)
                else:
                    self.cache.entered(rollout_id, attempt, dropped=True)
                self.cancel_leaving(rollout_id)
                self.forget(rollout)
                end()

        drop(self, rollout, dropped)

    def end_here(self, rollout: Rollout) -> None:
        """End a rollout that no server has, with the status CANCELLED."""
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

    def add(self, rollout: Rollout, *, replaces: bool) -> None:
        """Queue a new rollout. If it `replaces` a lower attempt, that attempt ends once the ledger has this one."""
        self.rollouts[rollout.request.rollout_id] = rollout
        if replaces:
            enter(self, rollout)
        self._queue.add(rollout)
        self.changed()

    def continue_at(self, rollout: Rollout, server_key: str) -> None:
        """Continue a rollout of an earlier process at the server with this key, or elsewhere without that server."""
        self.rollouts[rollout.request.rollout_id] = rollout
        server = next((server for server in self.servers if server.server_key == server_key), None)
        if server is not None:
            self.placement.add(rollout, server)
            server.adopt(rollout)
        else:
            name = server_key or "the server of the earlier attempt"
            self.restart(rollout, f"{name} is no longer one of this trainer's servers")

    def supersede(self, rollout: Rollout, attempt: int) -> None:
        """End a rollout, because a caller requests a higher attempt. Its callers get Superseded."""
        self._queue.remove(rollout)
        if rollout.server is not None:
            rollout.server.abandon(rollout)
        self.forget(rollout)
        if not rollout.done.done():
            rollout.done.set_exception(rollout.superseded(attempt))

    def superseded(self, rollout_id: str, attempt: int, newest: int = 0) -> None:
        rollout = self.rollouts.get(rollout_id)
        if rollout is not None and rollout.request.attempt == attempt:
            self.refused(rollout, rollout.superseded(newest))
            self.changed()

    def lost(self, rollout: Rollout, why: str) -> None:
        rollout.losses.append(f"attempt {rollout.request.attempt}: {why}")
        losses = len(rollout.losses)
        if losses < self._max_attempts or rollout.cancelled:
            # Without the pause, a server that forgets its rollouts would use up all attempts at once.
            rollout.backoff = rollout.backoff or Backoff(*LOST_PAUSES, system=self.supervisor.system)
            self.restart(rollout, why, rollout.backoff.next())
            return
        name = rollout.request.rollout_id
        self.refused(rollout, Unavailable(f"rollout {name} was lost {losses} times: {'; '.join(rollout.losses)}"))
        self.changed()

    def restart(self, rollout: Rollout, why: str, after: float = 0.0) -> None:
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
        rollout.opened, rollout.sent, rollout.sent_lower = False, False, rollout.sent or rollout.sent_lower
        rollout.raised.clear()
        self.cache.rollout(rollout.request.rollout_id, attempt, self.cache.now())
        enter(self, rollout)
        if after:
            self._send_later(rollout, after)
        else:
            self._queue.add(rollout, first=True)
        self._loop.call_soon(self.changed)

    def entered(self, key: RolloutKey) -> None:
        self.cache.entered(*key)
        self.cancel_leaving(key[0])

    def cancel_leaving(self, rollout_id: str) -> None:
        for server in self.servers:
            if server.leaving and server.attached:
                server.cancel_leaving(rollout_id)

    def cancel_later(self, server: AgentServerLink, rollout_id: str) -> None:

        def again() -> None:
            if server.attached:  # the next connection repeats all cancels
                server.cancel_leaving(rollout_id)

        self._timer(CANCEL_RETRY, again, lambda error: None)  # after an error, the next connection repeats the cancel

    def put_back(self, rollout: Rollout, after: float) -> None:
        rollout.server = None
        if rollout.cancelled:
            self.end_here(rollout)
        else:
            self._send_later(rollout, after)

    def init_refused(self, rollout: Rollout, server: AgentServerLink, error: CallError) -> None:
        server.release(rollout)
        rollout.sent = rollout.opened  # it may have accepted an earlier Init of this attempt
        no_original = rollout.request.fork is not None and isinstance(error, NotFound) and error.kind == "rollout"
        if no_original:
            rollout.without_original.append(server)
        if error.retryable:
            self.put_back(rollout, 1.0 if error.retry_after is None else error.retry_after)
        elif no_original and self.placement.may_go_elsewhere(rollout):  # waits for servers that are not attached
            self.put_back(rollout, 0.0)
        else:
            self.refused(rollout, error)
        self.changed()

    def _send_later(self, rollout: Rollout, after: float) -> None:
        def again() -> None:
            if not rollout.ending and not rollout.done.done():
                self._queue.add(rollout, first=True)
                self.changed()

        self.later(after, again, rollout)

    def later(self, after: float, call: Callable[[], None], rollout: Rollout) -> None:

        def fail(error: BaseException) -> None:
            problem = job_failed(SEND_AGAIN, error)
            if not rollout.ending:
                self.refused(rollout, problem)
                return
            self.forget(rollout)
            if not rollout.done.done():
                rollout.done.set_exception(problem)

        self._timer(after, call, fail)

    def _timer(
        self, after: float, call: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> asyncio.TimerHandle:
        def now() -> None:
            self._returning.discard(timer)
            call()

        timer = self.supervisor.call_later(SEND_AGAIN, after, now, report=fail)
        self._returning.add(timer)
        return timer

    def warn_if_all_drain(self) -> None:
        """Log a warning if rollouts wait because all servers are draining."""
        names = self.servers.draining
        waiting = sum(rollout.server is None for rollout in self.rollouts.values()) if names else 0
        if waiting:
            warn_draining(names, waiting)

    def changed(self) -> None:
        wait = self.servers.first_answers_missing
        if not wait:
            self._queue.send(self._sent)
        elif self._first_answers is None:
            self._first_answers = self._timer(wait, self._no_more_answers, lambda error: self._no_more_answers())

    def _no_more_answers(self) -> None:
        self._first_answers = None
        self.changed()

    def _sent(self, rollout: Rollout) -> bool:
        """Send a rollout to a server, or refuse it. Return False if no server has a free slot for the rollout."""
        try:
            server = self.placement.server_for(rollout)
            if server is None:
                return False
            if rollout.request.fork is not None and FORK not in server.features:
                self.refused(rollout, Unimplemented(f"agent server {server.name} cannot fork: its version is too old"))
                return True
            self.placement.add(rollout, server)
            assign(self, rollout, server)
        except Exception as error:
            problem = job_failed(SEND_AGAIN, error)
            self.supervisor.failed(SEND_AGAIN, error, lambda _: self.refused(rollout, problem))
        return True

    def remove(self, server: AgentServerLink, why: str) -> None:
        """Forget a server that was removed from the list. Its rollouts run elsewhere at once, as higher attempts."""
        self.servers.remove(server)
        server.lost(Unavailable(why))
        self.placement.leave(server)
        for rollout in list(server.rollouts.values()):
            self.restart(rollout, why)
        self.changed()

    def _lost(self, server: AgentServerLink, why: str) -> None:
        self.placement.leave(server)
        for rollout in list(server.rollouts.values()):
            self.lost(rollout, why)

    def _stuck(self, server: AgentServerLink, error: BaseException) -> None:
        for rollout in list(server.rollouts.values()):
            self.refused(rollout, job_failed(LOST, error))

    def _none_attached(self, error: CallError) -> None:
        """End the rollouts that wait for a server. `error` tells why no server is attached."""
        waiting = [
            rollout
            for rollout in self.rollouts.values()
            if not rollout.ending and (rollout.server is None or rollout.server.refusal is not None)
        ]
        for rollout in waiting:
            self.forget(rollout)
            if rollout.sent or rollout.sent_lower:
                self.cache.let_run_again(*rollout.key)
            if not rollout.done.done():
                rollout.done.set_exception(error)

    def end_all(self, error: Exception) -> None:
        """Fail every waiting call with this error."""
        self.servers.close(error)
        for rollout in self.rollouts.values():
            if not rollout.done.done():
                rollout.done.set_exception(error)
        self.rollouts.clear()

    def close(self) -> None:
        """Fail every waiting call with Unavailable, and start nothing more."""
        for timer in self._returning:
            timer.cancel()
        self._outcomes.close()
        self.end_all(Unavailable("the trainer was closed"))
        self.cache.close()
