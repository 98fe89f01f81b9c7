"""Enters the attempts of rollouts in the ledger, drops them from it, and reads unconfirmed outcomes.

Three rules keep the ledger correct if the process is killed at any time:

- An Init is sent only once its attempt is in the ledger. Otherwise a server could run an attempt that no process knows.
- A lower attempt is cancelled only once the higher one is in the ledger. Otherwise neither would run after a crash.
  This also holds for a rollout that no caller waits for: first its next attempt is reserved for a later request.
- A rollout that ends without an outcome is dropped before its callers learn of it. Otherwise it would run again after a
  crash. If a server may have it, the ledger keeps the number of the next attempt, so that none runs twice.

Failed writes are retried later. Without a ledger, each step happens at once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from osmosis_grpc.engine.failpoints import reach
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.protocol.errors import AlreadyExists, LedgerError
from osmosis_grpc.protocol.types import RolloutOutcome, RolloutRequest
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.storage.data_loss import data_loss
from osmosis_grpc.storage.ledger import LedgerRollout, SqliteLedger
from osmosis_grpc.storage.ledger.rows import Then
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_link import AgentServerLink, Rollout, SchedulerPort, job_failed, retrieve
from osmosis_grpc.trainer.chats.attempt_cache import UNWRITTEN_RETRY, AttemptCache
from osmosis_grpc.trainer.chats.ledger_codec import init_bytes, learn, outcome_of, tools_of
from osmosis_grpc.trainer.chats.rollout_cache import LedgerReceipt

log = logging.getLogger(__name__)

ASSIGNED = job("trainer.assigned", OnFailure.REPORT, "callback")


def assign(scheduler: SchedulerPort, rollout: Rollout, server: AgentServerLink) -> None:
    """Assign a rollout to a server, and send its Init once the ledger has committed it."""
    rollout.opened = False
    server.adopt(rollout)
    if scheduler.ledger is None:
        rollout.sent = True
        server.send_init(rollout)
        return
    rollout.written = False
    key = rollout.key

    def committed(_: Any, error: LedgerError | None) -> None:
        if server.rollouts.get(key) is not rollout:
            return  # the rollout has ended, or was assigned to another server
        rollout.written = True
        if error is None:
            reach("ledger.init.committed")
            rollout.begun = rollout.sent = True
            scheduler.entered(key)
            server.send_init(rollout)
            return
        server.release(rollout)
        if rollout.begun:
            scheduler.put_back(rollout, UNWRITTEN_RETRY)
        else:
            scheduler.refused(rollout, error)
        scheduler.changed()

    def failed(error: BaseException) -> None:
        if server.rollouts.get(key) is rollout:
            server.release(rollout)
            scheduler.refused(rollout, job_failed(ASSIGNED, error))

    then = partial(scheduler.supervisor.call, ASSIGNED, committed, report=failed)
    scheduler.ledger.record_assignment(*key, init_bytes(rollout.request), server.server_key, rollout.affinity_key, then)


def enter(scheduler: SchedulerPort, rollout: Rollout) -> None:
    """Enter a higher attempt at once, before it has a server, because it may wait long for the lower one's slot."""
    key, ledger = rollout.key, scheduler.ledger
    if ledger is None or not rollout.begun:
        scheduler.cancel_leaving(key[0])
        return

    def again() -> None:
        newest = rollout.key == key and scheduler.rollouts.get(key[0], rollout) is rollout
        if (
            newest and rollout.server is None and not rollout.ending
        ):  # otherwise assign() enters it together with its server
            enter(scheduler, rollout)

    def committed(_: Any, error: LedgerError | None) -> None:
        if error is None:  # also if the rollout has ended meanwhile: the cancels of its lower attempts wait for this
            scheduler.entered(key)
        else:
            scheduler.later(UNWRITTEN_RETRY, again, rollout)

    ledger.record_assignment(*key, init_bytes(rollout.request), "", rollout.affinity_key, committed)


def abandon(scheduler: SchedulerPort, rollout: Rollout) -> None:
    """Reserve the next attempt of a rollout that no caller waits for, and then cancel the rollout at its server."""
    rollout_id, attempt = rollout.key
    ledger = scheduler.ledger

    def cancel() -> None:
        if rollout.server is not None and not rollout.done.done():
            rollout.server.cancel(rollout_id, "its caller has left", attempt).add_done_callback(retrieve)

    if ledger is None:
        cancel()
    else:
        _write(scheduler, rollout, partial(ledger.reserve, rollout_id, attempt + 1), cancel)


def drop(scheduler: SchedulerPort, rollout: Rollout, dropped: Callable[[], None]) -> None:
    """Drop a rollout that ends without an outcome from its server, and then call `dropped`.

    If a server may have run the rollout, its next attempt is reserved for a later request.
    """
    ledger = scheduler.ledger
    if ledger is None or not (rollout.in_ledger or rollout.key[0] in ledger.unconfirmed):
        dropped()
        return
    rollout_id, attempt = rollout.key
    may_have_run = rollout.sent or rollout.sent_lower
    write = (
        partial(ledger.reserve, rollout_id, attempt + 1) if may_have_run else partial(ledger.drop, rollout_id, attempt)
    )
    _write(scheduler, rollout, write, dropped)


def _write(scheduler: SchedulerPort, rollout: Rollout, write: Callable[[Then], None], then: Callable[[], None]) -> None:
    """Write to the ledger until a commit succeeds, and then call `then`. Give up when the rollout is done."""

    def again() -> None:
        if not rollout.done.done():
            write(committed)

    def committed(_: Any, error: LedgerError | None) -> None:
        if error is None:
            then()
        else:
            scheduler.later(UNWRITTEN_RETRY, again, rollout)

    again()


class UnconfirmedOutcomes:
    """The unconfirmed outcomes of a ledger, assembled again from their chats. Empty without a ledger."""

    def __init__(self, ledger: SqliteLedger | None) -> None:
        self._attempts = ledger.unconfirmed if ledger is not None else {}
        self.left: dict[str, None] = dict.fromkeys(self._attempts)
        """Rollouts of an earlier process that no caller has requested, oldest first."""
        self._ledger = ledger

    def holds(self, rollout_id: str, attempt: int) -> bool:
        """Return whether there is an unconfirmed outcome of this attempt or a higher one."""
        return self._attempts.get(rollout_id, 0) >= attempt

    def fetch(self, rollout_id: str, request: RolloutRequest | None = None) -> "asyncio.Future[RolloutOutcome]":
        """Return a future of an outcome. It raises LedgerError, and AlreadyExists if `request` is another request."""
        future: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        self.left.pop(rollout_id, None)
        assert self._ledger is not None
        self._ledger.fetch(rollout_id, partial(self._fetched, self._ledger, future, rollout_id, request))
        return future

    def _fetched(
        self,
        ledger: SqliteLedger,
        future: "asyncio.Future[RolloutOutcome]",
        rollout_id: str,
        request: RolloutRequest | None,
        kept: LedgerRollout | None,
        error: LedgerError | None,
    ) -> None:
        if future.done():
            return
        try:
            if error is not None:
                raise error
            if kept is None or kept.outcome is None:
                raise AlreadyExists(
                    f"rollout {rollout_id} is over and confirmed; raise `attempt` to run it again",
                    rollout_id=rollout_id,
                    attempt=kept.attempt if kept else 0,
                )
            receipt = LedgerReceipt(ledger, kept.rollout_id, kept.attempt, kept.result_id)
            future.set_result(replace(_outcome(ledger, kept, request), confirmation=receipt))
        except Exception as problem:
            future.set_exception(problem)


def _outcome(ledger: SqliteLedger, kept: LedgerRollout, request: RolloutRequest | None) -> RolloutOutcome:
    """Return the outcome. If the record is damaged, the outcome is FAILED (DATA_LOSS). Raises AlreadyExists."""
    damage = kept.damage
    if not damage:
        if request is not None and kept.init is not None:
            sent = rollout_pb2.InitRequest.FromString(kept.init)
            if init_bytes(replace(request, attempt=sent.attempt)) != kept.init:
                raise AlreadyExists(
                    f"rollout {request.rollout_id} was started with another request",
                    rollout_id=request.rollout_id,
                    attempt=kept.attempt,
                )
        try:
            return assembled(kept)
        except Exception as error:
            damage = clip(describe(error))
    log.error(
        "the outcome of rollout %s is damaged in the ledger %s: %s; it has FAILED (DATA_LOSS)",
        kept.rollout_id,
        ledger.name,
        damage,
    )
    return data_loss("ledger", kept.rollout_id, kept.attempt, damage, result_id=kept.result_id or "")


def assembled(kept: LedgerRollout) -> RolloutOutcome:
    """Return a recorded outcome with resolved references. Raises LedgerError if a chat is missing."""
    entry = AttemptCache(kept.attempt)
    entry.tools = tools_of(kept)
    learn(entry.samples, kept.chats)
    outcome = outcome_of(kept)
    if entry.refers_beyond(outcome):
        raise LedgerError("a chat that it refers to is missing")
    return entry.complete(outcome)
