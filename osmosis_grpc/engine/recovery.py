"""Going on with what another process left in the journal."""

from collections.abc import Callable, Mapping, Sequence

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import Clock
from osmosis_grpc.engine import verdicts
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.journal import Journal
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Peer, Record, Tenant
from osmosis_grpc.engine.recording import Recording
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.suspects import CONVICTED, SUSPECTED, Suspects
from osmosis_grpc.engine.table import RecordTable
from osmosis_grpc.engine.tombstones import CANCELLED_EARLY, Tombstones
from osmosis_grpc.types import FailureReason, JournaledRollout, events
from osmosis_grpc.types.failure_reasons import DATA_LOSS


class Recovery:
    """Each rollout that was left over is given a peer and goes on: `for entry in left_over(): go_on(entry, peer)`.

    After the last one `suspects.begin()` starts those that may have killed the process before.
    """

    def __init__(
        self,
        agent_loops: Mapping[str, RolloutAgentLoop],
        journal: Journal,
        table: RecordTable,
        tombstones: Tombstones,
        admission: Admission,
        runner: Runner,
        outbox: Outbox,
        log: EventLog,
        clock: Clock,
        callbacks: Callable[[str], Tenant],
    ) -> None:
        self._agent_loops = agent_loops
        self._journal = journal
        self._table = table
        self._tombstones = tombstones
        self._admission = admission
        self._runner = runner
        self._outbox = outbox
        self._log = log
        self._clock = clock
        self._callbacks = callbacks
        self.suspects = Suspects(log, self._admit)

    def left_over(self) -> Sequence[JournaledRollout]:
        """What another process left in the journal, in order of acceptance; go_on takes each."""
        return self._journal.unsettled()

    def go_on(self, entry: JournaledRollout, peer: Peer) -> str:
        """Deliver it, start it, run it again on what is recorded, or end it. Returns which, for a log."""
        now = self._clock.monotonic()
        elapsed = self._journal.elapsed(entry)
        record = Record.of(entry, peer, peer.tenant or self._callbacks(entry.owner), now, elapsed)
        self._table.restore(record)
        newest = self._table.highest(record.rollout_id)
        superseded = newest is not None and newest.attempt > record.attempt
        if record.completion is not None:
            self._table.ended(record)
            if superseded:
                self._outbox.give_up(record)
            else:
                self._outbox.put(record)
            return "delivered again"
        record.tenant.open += 1
        record.counted = True
        if superseded:  # the process before did not come to end it
            self._runner.supersede(record)
        elif entry.damage:
            why = f"the journal's record of the rollout is damaged: {entry.damage}"
            reason = FailureReason.DATA_LOSS
            lost = verdicts.failed("server", why, retryable=True, reason=reason, finish_reason=DATA_LOSS)
            self._runner.decide(record, lost)
        else:
            recording = Recording(self._log.trajectory(record.rollout_id, record.attempt))
            self._run(record, recording, self._count_deaths(entry, recording))
        if record.verdict is None:
            return "queued" if record.recording is None else "run again"
        failure = record.verdict.failure
        return f"ended: {failure.message if failure else record.verdict.finish_reason}"

    def _run(self, record: Record, recording: Recording, deaths: int) -> None:
        loop = self._agent_loops.get(record.agent_loop)
        if recording.cancelled is not None:
            self._runner.decide(record, verdicts.cancelled(recording.cancelled))
        elif self._tombstones.take(record):  # the process before did not come to use it
            self._runner.cancel(record, CANCELLED_EARLY)
        elif loop is None:
            why = f"there is no agent loop {record.agent_loop!r} any more"
            self._restarted(record, FailureReason.AGENT_LOOP_NOT_FOUND, why)
        elif recording.began and not loop.replayable:
            recording.count(record.meter)
            self._restarted(record, FailureReason.RESTART, "the server was started again while it ran")
        else:
            record.left_over = True
            if recording.began:
                self._resume(record, recording, deaths)
            else:
                self._admit(record)

    def _resume(self, record: Record, recording: Recording, deaths: int) -> None:
        """Run an agent again, on what it was answered; alone where that has killed the process before."""
        if deaths >= CONVICTED:
            why = f"the server's process died {deaths} times while this agent ran, and it got no new reply in between"
            reason = FailureReason.CRASHED_SERVER
            recording.count(record.meter)
            crashed = verdicts.failed("agent", why, reason=reason, finish_reason="crashed_server")
            self._runner.decide(record, crashed)
            return
        record.recording = recording
        self._log.append(record, events.Resumed(record.last_number))
        if deaths >= SUSPECTED:
            self._runner.limit(record)
            self.suspects.add(record, deaths)
        else:
            self.suspects.goes_before(record)
            self._admit(record)

    def _count_deaths(self, entry: JournaledRollout, recording: Recording) -> int:
        """Returns how often the process died while this agent ran, since its last new reply, and records it."""
        deaths = 0 if recording.progressed else entry.deaths
        deaths += recording.ran and self._journal.crashed
        if deaths != entry.deaths:
            self._journal.count_deaths(entry, deaths)
        return deaths

    def _admit(self, record: Record) -> None:
        self._admission.reserve(record.owner, beyond=True)
        record.reserved = True
        self._runner.admit(record)

    def _restarted(self, record: Record, reason: FailureReason, why: str) -> None:
        failed = verdicts.failed("server", why, retryable=True, reason=reason, finish_reason="restart")
        self._runner.decide(record, failed)
