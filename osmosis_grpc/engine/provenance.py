"""Distinguishes outcomes of earlier runs of a trainer from those of its present run, and counts them for the log.

An ended rollout belongs to the run of the trainer in which it ended. An Init of another run gets its outcome with an
EarlierRun, and no agent runs for it.
"""

import hashlib
import logging
import uuid
from collections.abc import Mapping

from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.source_version import AgentVersion, changes
from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.errors import Unavailable
from osmosis_grpc.types import EarlierRun, EndedBy

log = logging.getLogger(__name__)

SUMMED = 2.0
"""The interval, in seconds, of the log line that counts Inits of earlier rollouts."""


class Provenance:
    """Knows this process and the versions of its agents."""

    def __init__(self, runnables: Mapping[str, Runnable], journal: Journal) -> None:
        self.process_uuid = uuid.uuid4().hex
        self._versions = {name: AgentVersion.of(runnable.source) for name, runnable in runnables.items()}
        self.versions = {name: version.digest for name, version in self._versions.items()}
        """The version of each agent; empty if it is not known."""
        self._journal = journal
        self._count = 0
        self._changed: dict[str, str] = {}
        for version in self._versions.values():
            if version.digest:
                journal.keep_version(version.digest, version.parts)

    def ended_by(self, record: Record) -> EndedBy:
        """Return this process and the run of the trainer, for a rollout that ends now."""
        return EndedBy(self.process_uuid, record.peer.trainer_run)

    def earlier(self, record: Record, peer: Peer) -> EarlierRun | None:
        """Return where an ended rollout's outcome comes from; None if it ended for the same run of the trainer."""
        completion, by = record.delivery.completion, record.delivery.ended_by
        if completion is None or not peer.trainer_run or by.trainer_run == peer.trainer_run:
            return None
        then, now = completion.agent_version, self._versions.get(record.agent_loop, AgentVersion())
        return EarlierRun(
            record.delivery.end_time or 0.0,
            by.process_uuid,
            by.process_uuid == self.process_uuid,
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
        """Log the count since the last report, if any. Called every SUMMED seconds."""
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
    """Return a name for a run of a trainer that others may see: an attachment's id is secret."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
