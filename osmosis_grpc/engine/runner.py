"""Runs agents, and ends rollouts: exactly one end each, whatever the agent does.

Agent code runs in a plain asyncio task. The first of result, cancel and deadline decides; an
agent that was told to stop is cancelled again after 1 s and 3 s, and then its rollout ends
without it: the context refuses everything, the task counts as abandoned and keeps its slot
until it ends.
"""

import asyncio
import contextvars
import dataclasses
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext
from osmosis_grpc.agent.current import current_session
from osmosis_grpc.agent.ports import Clock
from osmosis_grpc.engine import failpoints, verdicts
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.lifecycle import ENDS, Step, advance
from osmosis_grpc.engine.provenance import Provenance
from osmosis_grpc.engine.record import Record, Verdict
from osmosis_grpc.engine.session import RolloutSession
from osmosis_grpc.supervise import Job, OnFailure, Supervisor, child, job
from osmosis_grpc.types import (
    Completion,
    CompletionStatus,
    FailureReason,
    RolloutRequest,
    RolloutState,
    events,
    jsontext,
)
from osmosis_grpc.types.completion import describe, log_traceback
from osmosis_grpc.types.messages import copy_messages
from osmosis_grpc.types.requests import copy_of, unread_metadata

log = logging.getLogger(__name__)

AGENT = job("engine.agent", OnFailure.RAISE)
AGENT_OVER = job("engine.agent_over", OnFailure.REPORT, "callback")
START = job("engine.start", OnFailure.REPORT, "callback")
DECIDE = job("engine.decide", OnFailure.REPORT, "callback")
DEADLINE = job("engine.deadline", OnFailure.REPORT, "timer")
STOP_AGAIN = job("engine.stop_again", OnFailure.REPORT, "timer")
ABANDON = job("engine.abandon", OnFailure.REPORT, "timer")

_LAST_WORD = 0.05  # seconds that an agent has after its last cancellation


class Runner:
    """Starts, stops and ends rollouts."""

    def __init__(
        self,
        agent_loops: dict[str, RolloutAgentLoop],
        config: EngineConfig,
        admission: Admission,
        event_log: EventLog,
        clock: Clock,
        on_end: Callable[[Record], None],
        on_dropped: Callable[[Record], None],
        on_reached: Callable[[object], None],
        provenance: Provenance,
        supervisor: Supervisor,
        on_grown: Callable[[Record, int], None],
    ) -> None:
        self._supervisor = supervisor
        self._provenance = provenance
        self._agent_loops = agent_loops
        self._config = config
        self._admission = admission
        self._log = event_log
        self._clock = clock
        self._on_end = on_end
        self._on_dropped = on_dropped
        self._on_reached = on_reached
        self._on_grown = on_grown
        self.abandoned: set[asyncio.Task[Any]] = set()
        """Agents that did not stop."""

    @property
    def longest_stop(self) -> float:
        """Seconds that it takes at most to end a rollout that runs."""
        return (self._config.stop_again_after or (0.0,))[-1] + 2 * _LAST_WORD

    def admit(self, record: Record) -> None:
        """An accepted rollout gets its slot or its place in the queue; its clock runs already."""
        self.limit(record)
        record.reserved = False
        if self._admission.enter(record):
            self._begin(record)
        else:
            record.state = advance(record.state, Step.QUEUE)

    def limit(self, record: Record) -> None:
        """Set the timer for the agent_timeout of its request. Idempotent."""
        if record.deadline is not None and not record.timers:
            self._later(DEADLINE, record, record.deadline - self._clock.monotonic(), self._expire, record)

    def decide(self, record: Record, verdict: Verdict) -> bool:
        """How a rollout ends; false when that was decided before."""
        if record.verdict is not None:
            return False
        record.verdict = verdict
        self._supervisor.call(DECIDE, self._carry_out, record, report=partial(self.fail, record))
        return True

    def _carry_out(self, record: Record) -> None:
        """End a rollout as decided: at once if no agent runs, otherwise after its agent has stopped."""
        if record.task is None:
            self._admission.withdraw(record)
            self._end(record, free=record.slot)
        else:
            self._stop(record)

    def fail(self, record: Record, error: BaseException) -> None:
        """End a rollout FAILED (server): code of the server itself, not the agent's, has raised `error`."""
        if record.report is not None or record.ended is not None:  # its end is written
            return
        if record.parked:  # the next process goes on with it
            if record.task is None or record.task.done():
                self._free_slot(record)
            return
        why = f"the agent server failed: {describe(error)}"
        log.error("rollout %s ends FAILED (server): %s", record.rollout_id, why)
        record.verdict = verdicts.failed("server", why, retryable=True, finish_reason="internal")
        if record.task in self.abandoned:
            self._end(record, free=False)
            return
        if record.task is not None and record.task.done():
            record.task = None
        self._carry_out(record)

    def cancel(self, record: Record, reason: str) -> None:
        """Somebody asked for it: it is written first, so that no process forgets it."""
        self._log.append(record, events.CancelAsked(reason))
        self.decide(record, verdicts.cancelled(reason))

    def supersede(self, record: Record) -> None:
        """A higher attempt stands: this one ends CANCELLED and sends nothing."""
        if record.ended is not None:
            self._on_dropped(record)
        elif not self.decide(record, verdicts.cancelled("superseded", superseded=True)):
            assert record.verdict is not None
            record.verdict = dataclasses.replace(record.verdict, deliver=False)

    def _diverge(self, record: Record, why: str) -> None:
        """Run again, the agent did something else."""
        reason = FailureReason.REPLAY_DIVERGED
        self.decide(record, verdicts.failed("server", why, retryable=True, reason=reason, finish_reason="replay"))

    def _later(self, job: Job, record: Record, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        """Set a timer of a rollout. What its callback raises ends the rollout FAILED (server)."""
        timer = self._supervisor.call_later(job, seconds, callback, *args, report=partial(self.fail, record))
        record.timers.append(timer)

    def _begin(self, record: Record) -> None:
        """Start a rollout that was given a slot."""
        record.slot = True
        self._supervisor.call(START, self._start, record, report=partial(self.fail, record))

    def _start(self, record: Record) -> None:
        record.state = advance(record.state, Step.START)
        record.start_time, now = self._clock.time(), self._clock.monotonic()
        waited = record.meter.started(now)
        if record.deadline is None and self._config.agent_timeout is not None:
            record.timeout = self._config.agent_timeout
            record.deadline = now + record.timeout
            self._later(DEADLINE, record, record.timeout, self._expire, record)
        record.agent_version = self._provenance.version(record.agent_loop)
        started = events.Started(waited, record.agent_version)
        if record.left_over:
            self._log.append(record, started, self._run)
        else:
            self._log.append(record, started)
            self._run(record)

    def _run(self, record: Record) -> None:
        """Run the agent."""
        if record.verdict is not None or record.parked:  # that came before the commit
            self._free_slot(record)
            return
        request = record.init.request
        session = RolloutSession(
            record, self._log, self._config, self._clock, self.supersede, self._diverge, self._on_reached
        )
        record.session = session
        context = RolloutContext(
            request=own_copy(request, partial(self._on_grown, record)),
            tools=[jsontext.copy(tool, "tools") for tool in record.tools],
            session=session,
        )
        variables = contextvars.copy_context()
        variables.run(current_session.set, session)
        agent = self._agent_loops[record.agent_loop]
        name = f"agent {record.rollout_id}"[:80]
        over = partial(self._supervisor.call, AGENT_OVER, self._over, record, report=partial(self.fail, record))
        record.task = task = child(AGENT, _outcome(agent, context), context=variables, name=name)
        task.add_done_callback(over)
        failpoints.reach("rollout.started")

    def _over(self, record: Record, task: "asyncio.Task[Verdict]") -> None:
        """The agent's task ended, one way or another."""
        if task in self.abandoned or record.parked:
            self.abandoned.discard(task)
            for timer in record.timers:
                timer.cancel()
            if not task.cancelled():
                task.exception()
            record.task = None
            self._free_slot(record)
            return
        if record.verdict is None:
            if task.cancelled():
                record.verdict = verdicts.failed("agent", "run cancelled itself", reason=FailureReason.AGENT_EXCEPTION)
            elif record.deadline is not None and self._clock.monotonic() >= record.deadline:
                record.verdict = verdicts.expired(record)
            else:
                record.verdict = task.result()
        elif not task.cancelled():
            task.exception()
        self._end(record, free=True)

    def _expire(self, record: Record) -> None:
        self.decide(record, verdicts.expired(record))

    def _stop(self, record: Record) -> None:
        """Cancel the agent, again and again, and in the end without it."""
        assert record.task is not None
        task = record.task
        self._later(ABANDON, record, self.longest_stop - _LAST_WORD, self._abandon, record)
        for after in self._config.stop_again_after:
            self._later(STOP_AGAIN, record, after, task.cancel)
        task.cancel()

    def _abandon(self, record: Record) -> None:
        if record.task is not None and not record.task.done():
            log.warning("the agent of rollout %s does not stop; it keeps its slot until it does", record.rollout_id)
            self.abandoned.add(record.task)
            if not record.parked:
                self._end(record, free=False)
        elif not record.parked:  # it has stopped, and _over was not called
            self._end(record, free=record.slot)

    def park(self, record: Record) -> None:
        """Leave a rollout as it is in the journal: the next process goes on with it."""
        record.parked = True
        for timer in record.timers:
            timer.cancel()
        record.timers.clear()
        if record.session is not None:
            record.session.close()
        if record.task is None:
            self._admission.withdraw(record)
        else:
            self._stop(record)

    def _end(self, record: Record, *, free: bool) -> None:
        """Report, and commit: the terminal state, written once. `free` says that its slot is free after that."""
        assert record.verdict is not None
        if record.report is not None:
            return
        for timer in record.timers:
            timer.cancel()
        record.timers.clear()
        session: RolloutSession | None = record.session
        if record.state is not RolloutState.REPORTING:
            record.state = advance(record.state, Step.REPORT)
        if session is not None:
            session.close()
        try:
            self._report(record, self._completion(record, session), free)
        except Exception as error:  # a part of it cannot be written, for example
            log.exception("the outcome of rollout %s could not be written", record.rollout_id)
            why = f"the outcome could not be written: {describe(error)}"
            record.verdict = verdicts.failed("server", why, retryable=True, finish_reason="internal")
            self._report(record, verdicts.bare(record, record.verdict, _result_id()), free)

    def _completion(self, record: Record, session: RolloutSession | None) -> Completion:
        assert record.verdict is not None
        try:
            return verdicts.completion(record, record.verdict, session, _result_id(), self._clock.monotonic())
        except Exception as error:
            log.exception("the completion of rollout %s could not be built", record.rollout_id)
            failed = verdicts.failed("server", f"the completion could not be built: {describe(error)}", retryable=True)
            return verdicts.bare(record, failed, _result_id())

    def _report(self, record: Record, completion: Completion, free: bool) -> None:
        """Write the end of a rollout to the log."""
        for name, sample in completion.samples.items():
            for index, segment in enumerate(sample.segments):
                self._log.append(
                    record,
                    events.SegmentClosed(
                        sample=name,
                        index=index,
                        chats=segment.chats,
                        tokens=sum(segment.mask_runs),
                        sampled_tokens=segment.sampled,
                        drift_index=segment.drift_index,
                    ),
                )
        failpoints.reach("result.before")
        record.report = completion, self._provenance.ended_by(record)
        try:
            self._log.append(record, events.Ended(*record.report), partial(self._ended, free=free))
        except BaseException:
            record.report = None
            raise

    def _ended(self, record: Record, *, free: bool) -> None:
        """The end is committed. If this raises, it is called once more."""
        assert record.report is not None
        if record.ended is None:
            failpoints.reach("result.committed")
            completion, by = record.report
            record.session = record.task = None
            record.doing.clear()
            record.state = advance(record.state, ENDS[completion.status])
            record.completion, record.ended_by = completion, by
            record.settled = (
                completion.finish_reason == "superseded" and completion.status is CompletionStatus.CANCELLED
            )
            record.end_time, record.ended = self._clock.time(), self._clock.monotonic()
            notify_ended(self._agent_loops.get(record.agent_loop), record)
        self._on_end(record)
        if free:
            self._free_slot(record)

    def _free_slot(self, record: Record) -> None:
        if record.slot:
            record.slot = False
            for following in self._admission.leave(record):
                self._begin(following)


def _result_id() -> str:
    return f"{random.getrandbits(128):032x}"


async def _outcome(agent: RolloutAgentLoop, context: RolloutContext) -> Verdict:
    """The agent's run as a verdict: nothing that it raises gets past here but its cancellation."""
    try:
        return verdicts.returned(await agent.run(context))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        verdict = verdicts.raised(error)
        where = verdict.failure.where if verdict.failure else ""
        log.warning(
            "the agent of rollout %s raised%s\n%s",
            context.request.rollout_id,
            where and f" at {where}",
            log_traceback(error),
        )
        return verdict


def notify_ended(agent: RolloutAgentLoop | None, record: Record) -> None:
    """Tell an agent loop that a rollout is over."""
    try:
        if agent is not None:
            agent.ended(record.rollout_id, record.attempt)
    except BaseException as error:  # the agent's code may raise anything; nothing is awaited here
        log.warning("ended() of agent loop %s raised\n%s", record.agent_loop, log_traceback(error))


def own_copy(request: RolloutRequest, read: Callable[[int], None] = lambda size: None) -> RolloutRequest:
    """The agent's own copy of its request: what it does to the messages stays with it.

    `read` is called with the bytes that the metadata take, when the agent reads them.
    """
    metadata = unread_metadata(request)
    held: Any = {}
    if isinstance(metadata, jsontext.Unparsed):
        held = metadata.for_reader(read)
    elif metadata:
        held = jsontext.copy(metadata, "metadata_json")
    return copy_of(
        request,
        messages=copy_messages(request.messages, "messages"),
        completion_params=jsontext.copy(request.completion_params, "sampling") if request.completion_params else {},
        metadata=held,
    )
