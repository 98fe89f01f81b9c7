"""Enters the attempts of rollouts in the ledger, and drops them from it.

Three rules hold, whenever the process is killed:

- An Init is sent after its attempt is in the ledger. Otherwise a server could run an attempt that no process knows.
- A lower attempt is cancelled after the higher one is in the ledger. Otherwise neither would run after a crash.
- A rollout that ends without an outcome is dropped before its callers know. Otherwise it would run again after a crash.

What the ledger cannot write now is tried again later. Without a ledger, each step happens at once.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from osmosis_grpc.engine.failpoints import reach
from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_state import AgentServerLink, Rollout, job_failed
from osmosis_grpc.trainer.chats.attempt_cache import UNWRITTEN_RETRY
from osmosis_grpc.trainer.chats.ledger_codec import init_bytes

if TYPE_CHECKING:
    from osmosis_grpc.trainer.scheduler import Scheduler

ASSIGNED = job("trainer.assigned", OnFailure.REPORT, "callback")


def assign(owner: "Scheduler", rollout: Rollout, server: AgentServerLink) -> None:
    """Assign a rollout to a server, and send its Init after the commit."""
    rollout.opened = False
    server.adopt(rollout)
    if owner.ledger is None:
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
            rollout.begun = True
            owner.entered(key)
            server.send_init(rollout)
            return
        server.release(rollout)
        if rollout.begun:
            owner.put_back(rollout, UNWRITTEN_RETRY)
        else:
            owner.refused(rollout, error)
        owner.changed()

    def failed(error: BaseException) -> None:
        if server.rollouts.get(key) is rollout:
            server.release(rollout)
            owner.refused(rollout, job_failed(ASSIGNED, error))

    then = partial(owner.supervisor.call, ASSIGNED, committed, report=failed)
    owner.ledger.record_assignment(*key, init_bytes(rollout.request), server.server_key, rollout.affinity_key, then)


def enter(owner: "Scheduler", rollout: Rollout) -> None:
    """Enter a higher attempt before any server gets it, because it can wait long for the slot of the lower one."""
    key, ledger = rollout.key, owner.ledger
    if ledger is None or not rollout.begun:
        owner.cancel_leaving(key[0])
        return

    def again() -> None:
        newest = rollout.key == key and owner.rollouts.get(key[0], rollout) is rollout
        if newest and rollout.server is None and not rollout.ending:  # with a server, it enters with the server
            enter(owner, rollout)

    def committed(_: Any, error: LedgerError | None) -> None:
        if error is None:  # also if the rollout has ended meanwhile: its lower attempts wait for this commit
            owner.entered(key)
        else:
            owner.later(UNWRITTEN_RETRY, again, rollout)

    ledger.record_assignment(*key, init_bytes(rollout.request), "", rollout.affinity_key, committed)


def drop(owner: "Scheduler", rollout: Rollout, dropped: Callable[[], None]) -> None:
    """Drop a rollout that ends without an outcome of its server, and then call `dropped`."""
    ledger = owner.ledger if rollout.in_ledger else None
    if ledger is None:
        dropped()
        return

    def again() -> None:
        if not rollout.done.done():
            ledger.drop(*rollout.key, committed)

    def committed(_: Any, error: LedgerError | None) -> None:
        if error is None:
            dropped()
        else:
            owner.later(UNWRITTEN_RETRY, again, rollout)

    again()
