"""Continues the rollouts that the previous process left in the journal.

A rollout is a suspect if the process has died several times while its agent ran without getting a new reply. Each
suspect runs alone. Otherwise an agent that kills the process would do so at every start, and no other rollout would
ever end.
"""

import heapq
import logging
from collections import Counter
from collections.abc import Callable

from osmosis_grpc.engine.agent_calls import own_copy
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.outbox import Outbox
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.recorded_chats import ForkedChats, Recording
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.engine.tombstones import CANCELLED_EARLY
from osmosis_grpc.protocol.types import FailureReason, Fork, JournaledRollout, TrajectoryEvent, events
from osmosis_grpc.protocol.types.failure_reasons import DATA_LOSS

log = logging.getLogger(__name__)

SUSPECTED = 2
"""After the process has died this many times, the rollout runs alone."""
CONVICTED = 4
"""After the process has died this many times without a new reply to the agent, the rollout does not run again."""


class Recovery:
    """Continues each unsettled rollout of the journal. Used once, when the server starts."""

    def __init__(self, context: EngineContext, runner: Runner, outbox: Outbox) -> None:
        self._context = context
        self._runner = runner
        self._outbox = outbox
        self._before: set[tuple[str, int]] = set()
        """Rollouts that run again. The next suspect starts when each of them has got a new reply or has ended."""
        self._suspects: list[tuple[int, int, Record]] = []

    def recover(self, peer_of: Callable[[JournaledRollout], Peer]) -> Counter[str]:
        """Continue every rollout that the previous process left, with the peer that `peer_of` returns for it.

        Return, for the log, how many rollouts are delivered again, queued, run again, and ended. Suspects start after
        the other rollouts.
        """
        left = [(entry, self._restore(entry, peer_of(entry))) for entry in self._context.journal.unsettled()]
        for entry, record in left:
            agent = self._context.runnables.get(record.agent_loop)
            if agent is not None and record.live and not entry.damage and record.init.request.group is not None:
                agent.accepted(own_copy(record.init.request), record.owner)
        continued = Counter(self._continue(entry, record) for entry, record in left)
        if self._suspects:
            self._context.log.add_sink(self._see, events.ChatAnswered)
            self._start_suspects()
        return continued

    def _restore(self, entry: JournaledRollout, peer: Peer) -> Record:
        now, tenant = self._context.system.monotonic(), peer.tenant or self._context.callback_tenant(entry.owner)
        record = Record.of(entry, peer, tenant, now, self._context.journal.elapsed(entry))
        self._context.table.add(record)
        return record

    def _continue(self, entry: JournaledRollout, record: Record) -> str:
        """Deliver a rollout, start it, run it again with its recorded replies, or end it. Return what was done."""
        superseded = self._context.table.highest(record.rollout_id) is not record
        if record.delivery.outcome is not None:
            self._context.table.ended(record)
            if superseded:
                self._outbox.give_up(record)
            else:
                self._outbox.put(record)
            return "delivered again"
        record.count(True)
        if superseded:  # the previous process stopped before it ended the rollout
            self._runner.supersede(record)
        elif entry.damage:
            why = f"the journal's record of the rollout is damaged: {entry.damage}"
            self._runner.decide(record, Termination.server_failed(FailureReason.DATA_LOSS, why, DATA_LOSS))
        else:
            recording = Recording(self._context.log.trajectory(record.rollout_id, record.attempt))
            self._run(record, recording, self._count_deaths(entry, recording))
        if record.run.termination is None:
            return "queued" if record.run.recording is None else "run again"
        failure = record.run.termination.failure
        return f"ended: {failure.message if failure else record.run.termination.finish_reason}"

    def _read_original(self, record: Record, fork: Fork) -> None:
        """Read the recorded chats of the original of a fork, if the journal still has them."""
        chats = ForkedChats(fork, self._context.log.trajectory(fork.rollout_id, fork.attempt))
        if chats.found:
            original = self._context.table.find(fork.rollout_id, fork.attempt)
            if original is not None:
                chats.folder = self._context.journal.rollout_folder(original.sequence)
            record.run.original = chats
            self._context.table.grow(record, chats.nbytes)

    def _run(self, record: Record, recording: Recording, deaths: int) -> None:
        fork = record.init.request.fork
        if fork is not None:
            self._read_original(record, fork)
        agent = self._context.runnables.get(record.agent_loop)
        if recording.cancelled is not None:
            self._runner.decide(record, Termination.cancelled(recording.cancelled))
        elif self._context.tombstones.take(record):  # the previous process stopped before it used the tombstone
            self._runner.cancel(record, CANCELLED_EARLY)
        elif agent is None:
            why = f"there is no agent loop {record.agent_loop!r} any more"
            lost = Termination.server_failed(FailureReason.AGENT_LOOP_NOT_FOUND, why, "restart")
            self._runner.decide(record, lost)
        elif recording.began and not agent.replayable:
            recording.count(record.run.meter)
            why = "the server was started again while it ran"
            self._runner.decide(record, Termination.server_failed(FailureReason.RESTART, why, "restart"))
        elif fork is not None and record.run.original is None and not recording.reached(fork):
            recording.count(record.run.meter)
            why = f"rollout {fork.rollout_id}, from which it forks, is no longer in the journal"
            self._runner.decide(record, Termination.server_failed(FailureReason.RESTART, why, "restart"))
        else:
            record.run.left_over = True
            if recording.began:
                self._resume(record, recording, deaths)
            else:
                self._admit(record)

    def _resume(self, record: Record, recording: Recording, deaths: int) -> None:
        """Run an agent again with its recorded replies. After several deaths, run it alone, or end its rollout."""
        if deaths >= CONVICTED:
            why = f"the server's process died {deaths} times while this agent ran, and it got no new reply in between"
            reason = FailureReason.CRASHED_SERVER
            recording.count(record.run.meter)
            crashed = Termination.failed("agent", why, reason=reason, finish_reason="crashed_server")
            self._runner.decide(record, crashed)
            return
        record.run.recording = recording
        self._context.log.append(record, events.Resumed(record.trail.last_event_number))
        if deaths >= SUSPECTED:
            log.warning(
                "the server's process died %d times while rollout %s ran without a new reply: it runs alone now",
                deaths,
                record.rollout_id,
            )
            self._runner.limit(record)
            heapq.heappush(self._suspects, (deaths, record.sequence, record))
        else:
            self._before.add((record.rollout_id, record.attempt))
            self._admit(record)

    def _see(self, event: TrajectoryEvent) -> None:
        if isinstance(event.kind, events.ChatAnswered) and not (event.kind.recorded_event or event.kind.forked):
            self.passed(event.rollout_id, event.attempt)

    def passed(self, rollout_id: str, attempt: int) -> None:
        """Record that a rollout has ended or has a new reply, so that the suspects no longer wait for it."""
        if (rollout_id, attempt) in self._before:
            self._before.discard((rollout_id, attempt))
            self._start_suspects()

    def _start_suspects(self) -> None:
        """Start the suspect with the fewest deaths, if no other rollout has to come first."""
        while self._suspects and not self._before:
            record = heapq.heappop(self._suspects)[2]
            if record.run.termination is None and not record.run.parked:
                self._before.add((record.rollout_id, record.attempt))
                self._admit(record)

    def _count_deaths(self, entry: JournaledRollout, recording: Recording) -> int:
        """Return how often the process died while this agent ran, and record the number.

        Only deaths after the agent's last new reply count.
        """
        deaths = 0 if recording.progressed else entry.deaths
        deaths += recording.ran and self._context.journal.crashed
        if deaths != entry.deaths:
            self._context.journal.count_deaths(entry, deaths)
        return deaths

    def _admit(self, record: Record) -> None:
        self._context.admission.reserve(record, beyond=True)
        self._runner.admit(record)
