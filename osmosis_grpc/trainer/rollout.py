"""A rollout that somebody waits for, and what its server tells about it."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from osmosis_grpc._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.errors import CallError, Internal, LedgerError
from osmosis_grpc.supervise import Job
from osmosis_grpc.types import Completion, RolloutRequest
from osmosis_grpc.types.completion import describe

if TYPE_CHECKING:
    from osmosis_grpc.trainer.attachment import Attachment

RolloutKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class Rollout:
    """A rollout that somebody waits for."""

    request: RolloutRequest
    done: "asyncio.Future[Completion]"
    affinity_key: str = ""
    """Kept on one server with others of this group."""
    server: "Attachment | None" = None
    """Where it was sent."""
    opened: bool = False
    """Its Init was answered."""
    opening: asyncio.Event | None = None
    """Made by wait_until_opened, set when its Init is answered or it is over."""
    cancelled: bool = False
    """It was cancelled here: should its server be lost, it is not run again."""
    waiters: int = 0
    given_up: bool = False
    """Whoever waited has gone."""
    written: bool = True
    """Its Init may be sent: the ledger has it, or there is none."""
    begun: bool = False
    """The ledger has it, perhaps with a lower attempt."""
    losses: list[str] = field(default_factory=list)
    """Why each attempt was lost, for those that an agent server lost."""

    async def wait_until_opened(self) -> None:
        """Wait until its Init is answered, or it is over. Raises the CallError that it is refused with."""
        while not self.opened and not self.done.done():
            if self.opening is None:
                self.opening = asyncio.Event()
                self.done.add_done_callback(self._wake)
            self.opening.clear()
            await self.opening.wait()
        if self.done.done():
            self.done.result()

    def set_opened(self) -> None:
        """Its Init was answered."""
        self.opened = True
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self.opening is not None:
            self.opening.set()

    @property
    def key(self) -> RolloutKey:
        """Its id and attempt."""
        return self.request.rollout_id, self.request.attempt


@dataclass(slots=True)
class Pin:
    """A group on one server."""

    open: int = 0
    started: int = 0


def job_failed(job: Job, error: BaseException) -> Internal:
    """Returns what the caller gets whose rollout a job has failed."""
    return Internal(f"{job.name} failed: {type(error).__name__}: {describe(error)}")


class Owner(Protocol):
    """Whoever holds the attachments and the rollouts."""

    def changed(self) -> None:
        """There may be room for another rollout."""

    def restart(self, rollout: Rollout, why: str) -> None:
        """Run a rollout again with a higher attempt, at once."""

    def lost(self, rollout: Rollout, why: str) -> None:
        """Run a rollout that its server has lost again after a pause, or end it after too many attempts."""

    def put_back(self, rollout: Rollout, after: float) -> None:
        """A rollout was not taken; it may be sent again after some seconds."""

    def refused(self, rollout: Rollout, error: CallError) -> None:
        """A rollout was not taken, and will not be."""

    def unwritten(self, rollout: Rollout, error: LedgerError) -> None:
        """A rollout's Init could not be committed."""

    def completed(self, server: "Attachment", completion: Completion, raw: rollout_pb2.Completion) -> None:
        """Record a completion and tell its server, now or later; `raw` is how it came. Raises CallError."""

    def unusable(self, server: "Attachment", rollout_id: str, attempt: int, problem: BaseException) -> None:
        """End a rollout whose outcome the server was told for good that it is of no use."""
