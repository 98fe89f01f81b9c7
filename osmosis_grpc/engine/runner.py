"""Runs agents, and ends each rollout exactly once.

An agent runs in a plain asyncio task. Its rollout ends with a result, a cancel or the deadline, whichever comes first.
If a cancelled agent does not stop, it is cancelled again after 1 s and after 3 s. If it still runs after that, the
rollout ends, and the agent's task is abandoned: the context refuses every call, and the slot stays in use until the
task ends.
"""

import asyncio
import contextvars
import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from osmosis_grpc.agent import RolloutContext
from osmosis_grpc.agent.ports import current_session
from osmosis_grpc.agent.rollout_scope import current_rollout
from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.agent_calls import notify_ended, own_copy, run_agent
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.outcome import bare_outcome, build_outcome
from osmosis_grpc.engine.record import Record, advance
from osmosis_grpc.engine.rollout_session import RolloutSession
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.protocol.errors import Boundary, RolloutEndedError
from osmosis_grpc.protocol.types import (
    AbandonReason,
    FailureReason,
    OutcomeStatus,
    RolloutOutcome,
    RolloutState,
    events,
    jsontext,
)
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.supervise import Job, OnFailure, child, job

log = logging.getLogger(__name__)

AGENT = job("engine.agent", OnFailure.RAISE)
AGENT_OVER = job("engine.agent_over", OnFailure.REPORT, "callback")
START = job("engine.start", OnFailure.REPORT, "callback")
DECIDE = job("engine.decide", OnFailure.REPORT, "callback")
DEADLINE = job("engine.deadline", OnFailure.REPORT, "timer")
STOP_AGAIN = job("engine.stop_again", OnFailure.REPORT, "timer")
ABANDON = job("engine.abandon", OnFailure.REPORT, "timer")

AFTER_LAST_CANCEL = 0.05
"""After the last cancel, the runner waits this many seconds for the agent to stop."""


class Runner:
    """Starts, stops and ends rollouts."""

    def __init__(self, context: EngineContext, outbox: Outbox) -> None:
        self._context = context
        self._outbox = outbox
        self.abandoned: set[asyncio.Task[Any]] = set()
        """The tasks of agents that did not stop."""

    @property
    def longest_stop(self) -> float:
        """The longest time that it takes to end a running rollout, in seconds."""
        return (self._context.config.stop_again_after or (0.0,))[-1] + 2 * AFTER_LAST_CANCEL

    def admit(self, record: Record) -> None:
        """Start an accepted rollout, or queue it. Its agent_timeout already runs."""
        self.limit(record)
        if self._context.admission.enter(record):
            self._begin(record)
        else:
            record.state = advance(record.state, RolloutState.QUEUED)

    def limit(self, record: Record) -> None:
        """Set the timer for the agent_timeout. Idempotent."""
        if record.run.deadline is not None and not record.run.timers:
            left = record.run.deadline - self._context.system.monotonic()
            self._later(DEADLINE, record, left, self._run_out_of_time, record)

    def _run_out_of_time(self, record: Record) -> None:
        self.decide(record, self._timed_out(record))

    def decide(self, record: Record, termination: Termination) -> bool:
        """Decide how a rollout ends, and end it. Return False if that was already decided."""
        if record.run.termination is not None:
            return False
        record.run.termination = termination
        self._context.supervisor.call(DECIDE, self._carry_out, record, report=partial(self.fail, record))
        return True

    def _carry_out(self, record: Record) -> None:
        """End a rollout as decided: at once if no agent runs, otherwise after its agent has stopped."""
        if record.run.task is None:
            self._context.admission.withdraw(record)
            self._end(record, free=record.slot)
        else:
            self._stop(record)

    def fail(self, record: Record, error: BaseException) -> None:
        """End a rollout FAILED (server), because the server's own code raised `error`."""
        if record.delivery.report is not None or record.delivery.ended is not None:  # its end is written
            return
        if record.run.parked:  # the next process continues it
            if record.run.task is None or record.run.task.done():
                self.free_slot(record)
            return
        why = f"the agent server failed: {describe(error)}"
        log.error("rollout %s ends FAILED (server): %s", record.rollout_id, why)
        record.run.termination = Termination.server_failed(why=why)
        if record.run.task in self.abandoned:
            self._end(record, free=False)
            return
        if record.run.task is not None and record.run.task.done():
            record.run.task = None
        self._carry_out(record)

    def cancel(self, record: Record, reason: str) -> None:
        """Cancel a rollout. First write the cancel to the log, so that it takes effect even after a crash."""
        self._context.log.append(record, events.CancelAsked(reason))
        self.decide(record, Termination.cancelled(reason))

    def supersede(self, record: Record) -> None:
        """End a rollout CANCELLED because a higher attempt replaces it. Its outcome is not delivered."""
        if not record.delivery.settled:
            record.peer.abandon((record.rollout_id, record.attempt, "", 0), AbandonReason.SUPERSEDED)
        if record.delivery.ended is not None:
            self._outbox.drop(record)
        elif not self.decide(record, Termination(OutcomeStatus.CANCELLED, "superseded", deliver=False)):
            assert record.run.termination is not None
            record.run.termination = dataclasses.replace(record.run.termination, deliver=False)

    def diverge(self, record: Record, why: str) -> None:
        """End a rollout whose agent runs again and sends a different chat than in its earlier run."""
        self.decide(record, Termination.server_failed(FailureReason.REPLAY_DIVERGED, why, "replay"))

    def begin_grading(self, record: Record) -> None:
        """End the agent's time limit, and start the grader's.

        Raises RolloutEndedError if the agent's time has run out, even if the agent ignored its cancel.
        """
        run, now, seconds = record.run, self._context.system.monotonic(), record.init.request.grader_timeout
        seconds = self._context.config.agent_timeout if seconds is None else seconds
        if run.termination is not None or (run.deadline is not None and now >= run.deadline):
            raise RolloutEndedError(f"the agent of rollout {record.rollout_id} has no time left")
        run.cancel_timers()
        run.grading, run.timeout, run.deadline = True, seconds, None if seconds is None else now + seconds
        self.limit(record)
        self._context.tell_stage(record)

    def _later(self, job: Job, record: Record, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        """Set a timer of a rollout. If the callback raises, the rollout ends FAILED (server)."""
        timer = self._context.supervisor.call_later(job, seconds, callback, *args, report=partial(self.fail, record))
        record.run.timers.append(timer)

    def _begin(self, record: Record) -> None:
        record.slot = True
        self._context.supervisor.call(START, self._start, record, report=partial(self.fail, record))

    def _start(self, record: Record) -> None:
        record.state = advance(record.state, RolloutState.RUNNING)
        record.run.start_time, now = self._context.system.time(), self._context.system.monotonic()
        waited = record.run.meter.started(now)
        if record.run.deadline is None and self._context.config.agent_timeout is not None:
            record.run.timeout = self._context.config.agent_timeout
            record.run.deadline = now + record.run.timeout
            self.limit(record)
        record.run.agent_version = self._context.earlier_runs.versions.get(record.agent_loop, "")
        self._context.tell_stage(record)
        started = events.Started(waited, record.run.agent_version)
        if record.run.left_over:  # a crash from here on must be counted
            self._context.log.append(record, started, self._run)
        else:
            self._context.log.append(record, started)
            self._run(record)

    def _run(self, record: Record) -> None:
        """Start the agent's task, unless the rollout ended or was parked meanwhile."""
        if record.run.termination is not None or record.run.parked:
            self.free_slot(record)
            return
        session = RolloutSession(record, self._context, self)
        record.run.session = session
        context = RolloutContext(
            request=own_copy(record.init.request, partial(self._context.table.grow, record)),
            tools=[jsontext.copy(tool, "tools") for tool in record.tools],
            session=session,
        )
        variables = contextvars.copy_context()
        variables.run(current_session.set, session)
        variables.run(current_rollout.set, context)
        outcome = run_agent(self._context.runnables[record.agent_loop], context, self._stopped, record)
        record.run.task = task = child(AGENT, outcome, context=variables, name=f"agent {record.rollout_id}"[:80])
        task.add_done_callback(partial(self._agent_ended, record))
        failpoints.reach("rollout.started")

    def _stopped(self, record: Record, error: BaseException) -> None:
        """If a timeout stopped an agent or a grader, add the line at which it was to the failure."""
        ended = record.run.termination
        if ended is not None and ended.status is OutcomeStatus.DEADLINE_EXCEEDED and ended.failure is not None:
            record.run.termination = dataclasses.replace(ended, failure=ended.failure.raised_at(error))

    def _timed_out(self, record: Record) -> Termination:
        task = record.run.task
        return _timed_out(record, self._context.blocked_at(task.get_name()) if task is not None else "")

    def _agent_ended(self, record: Record, task: "asyncio.Task[Termination]") -> None:
        self._context.supervisor.call(AGENT_OVER, self._over, record, task, report=partial(self.fail, record))

    def _over(self, record: Record, task: "asyncio.Task[Termination]") -> None:
        """Decide how a rollout ends after its agent's task has ended. Its outcome is built a little later."""
        if task in self.abandoned or record.run.parked:
            self.abandoned.discard(task)
            record.run.cancel_timers()
            record.run.task = None
            self.free_slot(record)
            if record.run.parked:
                self._context.on_parked(record)
            return
        if record.run.termination is None:
            if task.cancelled():
                grading, reason = record.run.grading, FailureReason.AGENT_EXCEPTION
                record.run.termination = (
                    Termination.failed("grader", "grade cancelled itself", reason=FailureReason.GRADER_EXCEPTION)
                    if grading
                    else Termination.failed("agent", "run cancelled itself", reason=reason)
                )
            elif record.run.deadline is not None and self._context.system.monotonic() >= record.run.deadline:
                record.run.termination = self._timed_out(record)
            else:
                record.run.termination = task.result()
        record.run.cancel_timers()
        if record.run.session is not None:
            record.run.session.close()
        call, failed = self._context.supervisor.call, partial(self.fail, record)
        self._context.supervisor.later(partial(call, AGENT_OVER, self._end, record, report=failed))

    def _stop(self, record: Record) -> None:
        """Cancel the agent, several times if needed. If it never stops, its rollout ends without it."""
        assert record.run.task is not None
        task = record.run.task
        self._later(ABANDON, record, self.longest_stop - AFTER_LAST_CANCEL, self._abandon, record)
        for after in self._context.config.stop_again_after:
            self._later(STOP_AGAIN, record, after, task.cancel)
        task.cancel()

    def _abandon(self, record: Record) -> None:
        if record.run.task is not None and not record.run.task.done():
            log.warning("the agent of rollout %s does not stop; it keeps its slot until it does", record.rollout_id)
            self.abandoned.add(record.run.task)
            if not record.run.parked:
                self._end(record, free=False)
        elif not record.run.parked:  # the agent has stopped, and _over was not called
            self._end(record, free=record.slot)

    def park(self, record: Record) -> None:
        """Stop a rollout and leave it unfinished in the journal, so that the next process continues it."""
        record.run.parked = True
        record.run.cancel_timers()
        if record.run.session is not None:
            record.run.session.close()
        if record.run.task is None:
            self._context.admission.withdraw(record)
        else:
            self._stop(record)

    def _end(self, record: Record, *, free: bool = True) -> None:
        """Build the outcome and commit it, but only once. If `free` is True, give back the slot after the commit."""
        assert record.run.termination is not None
        if record.delivery.report is not None:
            return
        record.run.cancel_timers()
        if record.state is not RolloutState.REPORTING:
            record.state = advance(record.state, RolloutState.REPORTING)
        if record.run.session is not None:
            record.run.session.close()
        result_id, now = self._context.system.new_id(), self._context.system.monotonic()
        try:
            self._report(record, build_outcome(record, record.run.termination, result_id, now), free)
        except Exception as error:
            log.exception("the outcome of rollout %s could not be written", record.rollout_id)
            record.run.termination = Termination.server_failed(
                why=f"the outcome could not be written: {describe(error)}"
            )
            self._report(record, bare_outcome(record, record.run.termination, result_id), free)

    def _report(self, record: Record, outcome: RolloutOutcome, free: bool) -> None:
        for name, sample in outcome.samples.items():
            for index, segment in enumerate(sample.segments):
                self._context.log.append(
                    record,
                    events.SegmentClosed(
                        sample=name,
                        index=index,
                        chats=segment.chats,
                        tokens=sum(segment.mask_runs),
                        sampled_tokens=segment.sampled,
                        drift_index=segment.drift_index,
                        split=segment.split,
                    ),
                )
        failpoints.reach("result.before")
        record.delivery.report = ended = events.Ended(outcome, self._context.earlier_runs.ended_by(record))
        try:
            self._context.log.append(record, ended, partial(self._ended, free=free))
        except BaseException:
            record.delivery.report = None
            raise

    def _ended(self, record: Record, *, free: bool) -> None:
        """Make a committed end visible, and deliver the outcome. If this method raises, it is called again."""
        assert record.delivery.report is not None and record.run.termination is not None  # noqa: PT018
        if record.delivery.ended is None:
            failpoints.reach("result.committed")
            outcome = record.delivery.report.outcome
            if record.run.session is not None:
                record.run.session.release()
            record.run.session = record.run.task = None
            record.run.doing.clear()
            record.state = advance(record.state, RolloutState(outcome.status))
            record.delivery.outcome, record.delivery.ended_by = outcome, record.delivery.report.by
            record.delivery.settled = (
                outcome.finish_reason == "superseded" and outcome.status is OutcomeStatus.CANCELLED
            )
            record.delivery.end_time, record.delivery.ended = (
                self._context.system.time(),
                self._context.system.monotonic(),
            )
            notify_ended(self._context.runnables.get(record.agent_loop), record)
        record.count(False)
        if record.run.termination.deliver:
            self._outbox.put(record)
        elif not record.delivery.settled:
            self._outbox.give_up(record)
        self._context.on_ended(record)
        if free:
            self.free_slot(record)

    def free_slot(self, record: Record) -> None:
        """Give the slot of a rollout to another one. Idempotent."""
        if record.slot:
            record.slot = False
            for following in self._context.admission.leave(record):
                self._begin(following)


def _timed_out(record: Record, blocked_at: str) -> Termination:
    """Return the termination of a rollout whose agent_timeout or grader_timeout ran out.

    `blocked_at` is the line at which the agent or the grader blocked the event loop, or "" if it did not. The boundary
    of the failure depends on what the rollout was doing. If the agent sent more chats than max_turns, the boundary is
    always the agent, because the rollout would have ended in time without the extra chats.
    """
    request, run = record.init.request, record.run
    doing, turns = record.activity().description, request.max_turns
    asked = run.session.samples.turns() if run.session is not None else 0
    limit = run.timeout if run.grading else request.agent_timeout or run.timeout
    boundary: Boundary = "grader" if run.grading else "agent"
    message = f"the {boundary}_timeout of {limit or 0.0:g} s ran out"
    if not run.grading and 0 < turns < asked:
        message += f" at chat {asked}, and max_turns is {turns}: the agent does not stop at ctx.request.max_turns"
    elif record.state in (RolloutState.QUEUED, RolloutState.ACCEPTED):
        boundary = "server"
    elif doing.startswith("chat "):
        boundary = "trainer"
    own_code = "; it was in its own code, not in a chat or a tool"
    message += own_code if doing in ("agent", "grader") else f"; it was doing: {doing}"
    message += f", and blocked the event loop at {blocked_at}" if blocked_at else ""
    if run.did:
        message += f", and before that: {' '.join(map(str, run.did))}"
    reason = FailureReason.GRADER_TIMEOUT if run.grading else FailureReason.AGENT_TIMEOUT
    return Termination.timed_out(boundary, message, reason)
