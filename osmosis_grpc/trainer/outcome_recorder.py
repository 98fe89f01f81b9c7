"""Records the outcomes that agent servers report, and answers the servers.

If an outcome refers to chats that are not in the cache, the recorder first reads the rollout's events. A server could
report any number of such outcomes, so their total size is limited for each server.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from osmosis_grpc.protocol.errors import CallError, Internal, InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, Receipt, RolloutOutcome, TrajectoryEvent, events
from osmosis_grpc.protocol.wire.outcome import FAILURE, outcome_from_wire
from osmosis_grpc.storage.ledger import ChatRow
from osmosis_grpc.supervise import Job, OnFailure, job
from osmosis_grpc.trainer.agent_server_link import AgentServerLink, Report, RolloutKey, SchedulerPort, job_failed
from osmosis_grpc.trainer.annotate import RecentServers
from osmosis_grpc.trainer.chats.ledger_codec import all_chats

TAKE = job("trainer.take_outcome", OnFailure.REPORT, "callback")
READ = job("trainer.read_events", OnFailure.REPORT)
OVERDUE = job("trainer.overdue_outcome", OnFailure.REPORT, "timer")

UNCLAIMED_RETRY = 5.0
"""If no caller waits for a rollout, its server reports the outcome again after this many seconds."""

READING_BYTES = 64 * 1024 * 1024
"""The outcomes of one server that wait for events may have this many bytes. Further outcomes are refused for now."""
READING_COST = 64 * 1024
"""The bytes by which each waiting outcome counts more than its size."""
READING_RETRY = 1.0
"""A server reports a refused outcome again after this many seconds."""

READING_LIMIT = 60.0
"""If an outcome cannot be recorded within this many seconds, its rollout ends with an error.

A server reports an outcome again after up to 30 seconds, for example when its events could not be read."""

ReadingKey = tuple[AgentServerLink, str, int, str]


class OutcomeRecorder:
    """Records the outcomes of all servers of a trainer."""

    def __init__(self, scheduler: SchedulerPort) -> None:
        self.recent_servers = RecentServers()
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._rollouts = scheduler.rollouts
        self._supervisor = scheduler.supervisor
        self._reading: dict[ReadingKey, asyncio.Task[None]] = {}
        self._overdue: dict[RolloutKey, asyncio.TimerHandle] = {}
        """A timer for each rollout whose outcome cannot be recorded yet."""
        self._waiting_bytes: Counter[AgentServerLink] = Counter()

    def take(self, report: Report) -> None:
        """Record an outcome and answer its server. If needed, read the rollout's events first.

        The answer is Aborted for a lower attempt, and Unavailable if no caller waits for the rollout or too many
        outcomes of the server wait for events. If an outcome cannot be parsed, its rollout ends with an error.
        """
        self._supervisor.call(TAKE, self._take, report, report=partial(self._fail, report, TAKE))

    def _take(self, report: Report) -> None:
        rollout = self._rollouts.get(report.raw.rollout_id)
        try:
            outcome = outcome_from_wire(report.raw, "outcome")
        except InvalidArgument as error:
            report.reply(error)
            if rollout is not None and rollout.server is report.server and rollout.key == report.key:
                server = f"server {rollout.server.name}" if rollout.server is not None else "its server"
                problem = f"the outcome of rollout {report.key[0]} from {server} cannot be used: {error}"
                self._scheduler.refused(rollout, Internal(problem))
                self._scheduler.changed()
            return
        # An earlier process of this trainer may have started a higher attempt that was not in its ledger when it ended.
        # Then the server has ended the attempt that is the newest here as superseded.
        if rollout is not None and not rollout.ending and _is_superseded(outcome, rollout.key):
            self._scheduler.lost(rollout, "its server has ended it for a higher attempt of an earlier process")
        try:
            self._begin(report, outcome)
        except CallError as error:
            report.reply(error)

    def _begin(self, report: Report, outcome: RolloutOutcome) -> None:
        rollout = self._rollouts.get(outcome.rollout_id)
        if rollout.ending if rollout is not None else not self._cache.knows(outcome.rollout_id):
            raise _unclaimed(outcome)
        cache = self._cache.rollout(outcome.rollout_id, outcome.attempt, self._cache.now())
        if cache.result_id is None and rollout is None:
            raise _unclaimed(outcome)
        if cache.result_id is None and cache.lacks(outcome):
            self._read(report, outcome)
        else:
            self._record(report, outcome)

    def close(self) -> None:
        """Stop reading events."""
        for task in self._reading.values():
            task.cancel()
        for timer in self._overdue.values():
            timer.cancel()

    def _record(self, report: Report, outcome: RolloutOutcome, chats: Sequence[ChatRow] = ()) -> None:
        rollout = self._rollouts.get(outcome.rollout_id)
        if rollout is not None and rollout.request.evaluation and not outcome.evaluation:
            # An older server does not return `evaluation`. It is set in `raw` too, because the ledger stores `raw`.
            outcome, report.raw.evaluation = replace(outcome, evaluation=True), True
        failed = rollout.failed_by(outcome) if rollout is not None else None
        if failed is not None and outcome.status is OutcomeStatus.FAILED:
            failure = failed.of_rollout(outcome.failure)
            outcome = replace(outcome, failure=failure)
            report.raw.failure.CopyFrom(FAILURE.to_wire(failure))
        abandoned = rollout is not None and rollout.abandoned
        recorded = partial(self._recorded, report)
        self._cache.record(outcome, report.raw, recorded, abandoned=abandoned, chats=chats)

    def _recorded(self, report: Report, receipt: Receipt | CallError, outcome: RolloutOutcome | None) -> None:
        """Pass a recorded outcome to its callers, and answer the server."""
        rollout = self._rollouts.get(report.key[0])
        if outcome is not None and rollout is not None:
            if rollout.server is not None:
                self.recent_servers.add(outcome.rollout_id, rollout.server)
            if not rollout.done.done():
                rollout.done.set_result(outcome)
            self._scheduler.forget(rollout)
            self._scheduler.changed()
        report.reply(receipt)

    def _read(self, report: Report, outcome: RolloutOutcome) -> None:
        server = report.server
        if server is None:
            raise Unavailable("the rollout's events cannot be read: it is at no server", retry_after=READING_RETRY)
        key = (server, outcome.rollout_id, outcome.attempt, outcome.result_id)
        if key in self._reading:
            return
        size = report.raw.ByteSize() + READING_COST
        if self._waiting_bytes[server] + size > READING_BYTES:
            raise Unavailable("too many outcomes wait for their rollouts' events", retry_after=READING_RETRY)

        def read(_: asyncio.Task[None]) -> None:
            del self._reading[key]
            self._waiting_bytes[server] -= size
            if not self._waiting_bytes[server]:
                del self._waiting_bytes[server]

        self._waiting_bytes[server] += size
        fail = partial(self._fail, report, READ)
        self._reading[key] = self._supervisor.start(READ, partial(self._recover, server, report, outcome), fail)
        self._reading[key].add_done_callback(read)
        self._limit(server, report)

    def _limit(self, server: AgentServerLink, report: Report) -> None:
        key = report.key
        rollout = self._rollouts.get(key[0])
        if rollout is None or key in self._overdue:
            return

        def end() -> None:
            timer = self._overdue.pop(key, None)
            if timer is not None:
                timer.cancel()

        def overdue() -> None:
            end()
            if rollout.done.done() or rollout.key != key:
                return
            if (
                rollout.server is None or not rollout.server.attached
            ):  # its server may come back, or count as lost later: wait once more
                self._limit(server, report)
                return
            problem = "it refers to chats that are not known here, and its events did not name them in time"
            for (_, *of, _), task in list(self._reading.items()):
                if tuple(of) == key:
                    task.cancel()
            self._scheduler.refused(
                rollout, Internal(f"the outcome of rollout {key[0]} from server {server.name}: {problem}")
            )
            report.reply(InvalidArgument("outcome", problem))

        def fail(error: BaseException) -> None:
            end()
            self._scheduler.refused(rollout, job_failed(OVERDUE, error))

        self._overdue[key] = self._supervisor.call_later(OVERDUE, READING_LIMIT, overdue, report=fail)
        rollout.done.add_done_callback(lambda _: end())

    def _fail(self, report: Report, failed: Job, error: BaseException) -> None:
        """End a rollout, because this trainer failed to record its outcome. The server keeps the outcome."""
        problem = job_failed(failed, error)
        rollout = self._rollouts.get(report.key[0])
        if rollout is not None and rollout.key == report.key:
            self._scheduler.refused(rollout, problem)
        report.reply(problem)

    async def _recover(self, server: AgentServerLink, report: Report, outcome: RolloutOutcome) -> None:
        """Read the missing chats from the rollout's events, and then record the outcome."""
        rollout_id, attempt = report.key
        try:
            trajectory: list[TrajectoryEvent] = []
            async with aclosing(server.events(rollout_id, attempt, 0, tokens=True)) as stream:
                async for event in stream:
                    trajectory.append(event)
                    if isinstance(event.kind, events.Ended):
                        break
            cache = self._cache.rollout(rollout_id, attempt, self._cache.now())
            cache.restore(trajectory)
            self._record(report, outcome, list(all_chats(rollout_id, attempt, cache.samples)))
        except CallError as error:
            report.reply(Unavailable(f"the events that the outcome refers to cannot be read: {error}"))


def _unclaimed(outcome: RolloutOutcome) -> Unavailable:
    return Unavailable(f"no caller waits for rollout {outcome.rollout_id}", retry_after=UNCLAIMED_RETRY)


def _is_superseded(outcome: RolloutOutcome, key: RolloutKey) -> bool:
    ended = outcome.status is OutcomeStatus.CANCELLED and outcome.finish_reason == "superseded"
    return ended and (outcome.rollout_id, outcome.attempt) == key
