"""Finds outcomes that come from an earlier run of the trainer, and counts them for the log.

An ended rollout belongs to the run of the trainer in which it ended. If a later run of the trainer sends an Init for
it, no agent runs, and the trainer gets the old outcome with an EarlierRun.
"""

import hashlib
import logging
from collections.abc import Mapping

from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.source_version import AgentVersion, changes
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import EarlierRun, EndedBy
from osmosis_grpc.supervise import System

log = logging.getLogger(__name__)

SUMMED = 2.0
"""Inits for rollouts of earlier runs are counted, and the count is logged every so many seconds."""


class EarlierRuns:
    """Holds the id of this process and the versions of its agents."""

    def __init__(self, runnables: Mapping[str, Runnable], journal: Journal, system: System) -> None:
        self.process_id = system.new_id()
        self._versions = {name: AgentVersion.of(runnable.source) for name, runnable in runnables.items()}
        self.versions = {name: version.digest for name, version in self._versions.items()}
        """The version of each agent. Empty if the version is not known."""
        self._journal = journal
        self._count = 0
        self._changed: dict[str, str] = {}
        for version in self._versions.values():
            if version.digest:
                journal.keep_version(version.digest, version.parts)

    def ended_by(self, record: Record) -> EndedBy:
        """Return the process and the run of the trainer in which a rollout ends now."""
        return EndedBy(self.process_id, record.peer.trainer_run)

    def earlier(self, record: Record, peer: Peer) -> EarlierRun | None:
        """Return the earlier run in which a rollout ended, or None if it ended in the current run of the trainer."""
        outcome, by = record.delivery.outcome, record.delivery.ended_by
        if outcome is None or not peer.trainer_run or by.trainer_run == peer.trainer_run:
            return None
        then, now = outcome.agent_version, self._versions.get(record.agent_loop, AgentVersion())
        return EarlierRun(
            record.delivery.end_time or 0.0,
            by.process_id,
            by.process_id == self.process_id,
            record.agent_loop,
            then,
            now.digest,
            self._changes(then, now),
        )

    def _changes(self, then: str, now: AgentVersion) -> tuple[str, ...]:
        if not then or then == now.digest:
            return ()
        try:
            parts = self._journal.version(then)
        except Unavailable:
            return ()
        return tuple(changes(parts, now.parts)) if parts else ()

    def count(self, earlier: EarlierRun) -> None:
        """Count an Init for a rollout that ended in an earlier run."""
        self._count += 1
        change = earlier.describe_change()
        if change:
            self._changed[earlier.agent_loop] = change

    def report(self) -> None:
        """Log the count since the last report, if it is not 0. Called every SUMMED seconds."""
        if not self._count:
            return
        log.warning(
            "%d %s asked for rollouts that had ended in an earlier run of the trainer: nothing ran, and the trainer "
            "gets the outcomes of then; new ids or a higher attempt run them again%s",
            self._count,
            "Init" if self._count == 1 else "Inits",
            "".join(f"; {change}" for change in self._changed.values()),
        )
        self._count = 0
        self._changed.clear()


def run_name(text: str) -> str:
    """Return a public name for a run of a trainer. The name is a hash, because an attachment's id is secret."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
