"""Going on with what another process left in the journal."""

from collections.abc import Mapping, Sequence

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import Clock, Journal
from osmosis_grpc.engine import verdicts
from osmosis_grpc.engine.admission import Admission
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Peer, Record, Tenant
from osmosis_grpc.engine.recording import Recording
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.table import RecordTable
from osmosis_grpc.engine.tombstones import CANCELLED_EARLY, Tombstones
from osmosis_grpc.types import Entry, events


class Recovery:
    """Each rollout that was left over is given a peer and goes on: `for entry in left_over(): go_on(entry, peer)`."""

    def __init__(
        self, agent_loops: Mapping[str, RolloutAgentLoop], journal: Journal | None, table: RecordTable,
        tombstones: Tombstones, admission: Admission, runner: Runner, outbox: Outbox, log: EventLog, clock: Clock,
        callbacks: Tenant,
    ) -> None:  # fmt: skip
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

    def left_over(self) -> Sequence[Entry]:
        """What another process left in the journal, in order of acceptance; go_on takes each."""
        return self._journal.unsettled() if self._journal is not None else ()

    def go_on(self, entry: Entry, peer: Peer) -> str:
        """Deliver it, start it, run it again on what is recorded, or end it. Returns which, for a log."""
        now = self._clock.monotonic()
        elapsed = max(0.0, self._clock.time() - entry.accept_time)
        record = Record.of(entry, peer, peer.tenant or self._callbacks, now, elapsed)
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
        if superseded:  # the process before did not come to end it
            self._runner.supersede(record)
        else:
            self._run(record, Recording(self._log.trajectory(record.rollout_id, record.attempt)))
        if record.verdict is None:
            return "queued" if record.recording is None else "run again"
        failure = record.verdict.failure
        return f"ended: {failure.message if failure else record.verdict.finish_reason}"

    def _run(self, record: Record, recording: Recording) -> None:
        loop = self._agent_loops.get(record.agent_loop)
        if recording.cancelled is not None:
            self._runner.decide(record, verdicts.cancelled(recording.cancelled))
        elif self._tombstones.dig_up(record):  # the process before did not come to use it
            self._runner.cancel(record, CANCELLED_EARLY)
        elif recording.began and (loop is None or not loop.replayable):
            why = "the server was started again while it ran" if loop else f"agent loop {record.agent_loop!r} is gone"
            recording.count(record.meter)
            self._runner.decide(record, verdicts.failed("server", why, retryable=True, reason="restart"))
        elif loop is None:
            why = f"there is no agent loop {record.agent_loop!r} any more"
            self._runner.decide(record, verdicts.failed("server", why, retryable=True, reason="restart"))
        else:
            if recording.began:
                record.recording = recording
                self._log.append(record, events.Resumed(record.last_number))
            self._admission.reserve(beyond=True)
            self._runner.admit(record)
