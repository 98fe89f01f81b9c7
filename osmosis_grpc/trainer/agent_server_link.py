"""A rollout that a caller waits for, and the link to the agent server that runs it.

The scheduler knows agent servers only as AgentServerLink. Each transport has its own subclass.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, message_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import CallError, Internal, LedgerError, Superseded
from osmosis_grpc.protocol.types import (
    CancelResult,
    OutcomeStatus,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    TraceContext,
    TrajectoryEvent,
)
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.protocol.wire.message import tools_from_wire
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.supervise import Backoff, Job, Supervisor
from osmosis_grpc.trainer.chats.policy_errors import ChatKey, PolicyFailure
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache

log = logging.getLogger(__name__)

LOST_PAUSES = 0.25, 10.0
"""The first and the longest pause, in seconds, before a lost rollout runs again."""

RolloutKey = tuple[str, int]
"""A rollout's id and attempt."""


@dataclass(slots=True, eq=False)
class Rollout:
    """A rollout that a caller waits for, and what this trainer knows about it."""

    request: RolloutRequest
    done: "asyncio.Future[RolloutOutcome]"
    affinity_key: str = ""
    """Rollouts with the same key go to the same server."""
    server: "AgentServerLink | None" = None
    """The server to which the rollout is assigned."""
    opened: bool = False
    """Whether the server has accepted the Init of this attempt."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the Init is accepted and when the rollout ends."""
    cancelled: bool = False
    """Whether this trainer cancelled the rollout. A cancelled rollout does not run again when its server is lost."""
    waiters: int = 0
    abandoned: bool = False
    """Whether the last waiting caller has left."""
    written: bool = True
    """Whether the Init may be sent: the ledger has committed it, or there is no ledger."""
    begun: bool = False
    """Whether the ledger has this attempt or a lower attempt of the rollout."""
    sent: bool = False
    """Whether a server may have this attempt."""
    sent_lower: bool = False
    """Whether a server may have a lower attempt of the rollout."""
    ending: bool = False
    """Whether the rollout ends without an outcome from its server. It is done when the ledger has dropped it."""
    losses: list[str] = field(default_factory=list)
    """The reason for each loss, with the attempt."""
    without_original: "list[AgentServerLink]" = field(default_factory=list)
    """For a fork: the servers that do not have the original rollout."""
    backoff: Backoff | None = None
    """The pauses before the rollout runs again after a loss. None before its first loss."""
    raised: dict[str, PolicyFailure] = field(default_factory=dict)
    """The exception of the policy in this attempt, by sample. A later reply in the sample removes it."""
    on_raised: "list[Callable[[PolicyFailure], None]]" = field(default_factory=list)
    """Functions to call as soon as the policy raises."""
    trace: TraceContext | None = None
    """The trace context of the rollout's span, for its Inits. None if traces are off."""

    def __post_init__(self) -> None:
        self.done.add_done_callback(lambda _: self.changed.set())

    async def wait_until_opened(self) -> None:
        """Wait until the Init is accepted or the rollout ends. Raises the CallError of a refused rollout."""
        while not self.opened and not self.done.done():
            self.changed.clear()
            await self.changed.wait()
        if self.done.done():
            self.done.result()

    def failed_by(self, outcome: RolloutOutcome) -> PolicyFailure | None:
        """Return the exception of the policy if it made the rollout fail.

        Even if the agent catches the error and completes, the rollout counts as failed, unless the policy has answered
        at least one chat.
        """
        failed = outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.DEADLINE_EXCEEDED)
        unanswered = outcome.status is OutcomeStatus.COMPLETED and not outcome.metrics.num_llm_calls
        return next(iter(self.raised.values()), None) if failed or unanswered else None

    @property
    def in_ledger(self) -> bool:
        """Whether the ledger has an attempt of the rollout, or is about to commit its Init."""
        return self.begun or not self.written

    def policy_raised(self, key: ChatKey, failure: PolicyFailure | None) -> None:
        """Record that the policy has failed at a chat or, with None, has answered it."""
        if key[:2] != self.key:
            return
        if failure is None:
            self.raised.pop(key[2], None)
            return
        self.raised[key[2]] = failure
        for report in self.on_raised:
            report(failure)

    @property
    def key(self) -> RolloutKey:
        """The rollout's id and attempt."""
        return self.request.rollout_id, self.request.attempt

    def superseded(self, newest: int) -> Superseded:
        """Return the error for the callers of an attempt that `newest` has replaced; 0 if that is unknown."""
        rollout_id, attempt = self.key
        by = f"attempt {newest}" if newest else "another attempt"
        return Superseded(
            f"attempt {attempt} of rollout {rollout_id} ends without an outcome: {by} has replaced it",
            rollout_id=rollout_id,
            attempt=newest,
        )


@dataclass(slots=True, eq=False)
class Report:
    """An outcome that an agent server reports."""

    server: "AgentServerLink | None"
    """The server that runs the rollout; None when no server has the rollout."""
    raw: outcome_pb2.RolloutOutcome
    """The message as received."""
    reply: Callable[[Receipt | CallError], None]
    """Answers the server."""

    @property
    def key(self) -> RolloutKey:
        """The rollout's id and attempt."""
        return self.raw.rollout_id, self.raw.attempt or 1


def job_failed(job: Job, error: BaseException) -> Internal:
    """Return the error for the callers of a rollout after a background job has failed."""
    return Internal(f"{job.name} failed: {type(error).__name__}: {describe(error)}")


class SchedulerPort(Protocol):
    """The part of the scheduler that links and the outcome recorder use. They report; the scheduler decides."""

    cache: RolloutCache
    ledger: SqliteLedger | None
    supervisor: Supervisor
    rollouts: dict[str, Rollout]
    """The newest attempt of each unfinished rollout, by id."""
    process_id: str
    """The id of the trainer's process."""
    take_outcome: Callable[[Report], None]
    """Records an outcome and answers its server, now or later."""

    def changed(self) -> None:
        """Send waiting rollouts. Call this when a server may have a free slot."""

    def forget(self, rollout: Rollout) -> None:
        """Remove a rollout that has ended, or for which no caller waits."""

    def lost(self, rollout: Rollout, why: str) -> None:
        """Run a lost rollout again after a pause, as a higher attempt. After too many losses, end it."""

    def restart(self, rollout: Rollout, why: str) -> None:
        """Run a rollout again at once, as a higher attempt. If it was cancelled, end it instead."""

    def put_back(self, rollout: Rollout, after: float) -> None:
        """Queue a rollout again after `after` seconds, as the same attempt."""

    def init_refused(self, rollout: Rollout, server: "AgentServerLink", error: CallError) -> None:
        """Queue a refused rollout again if the error is retryable or another server may take it. Otherwise end it."""

    def refused(self, rollout: Rollout, error: CallError | LedgerError) -> None:
        """End a rollout with an error."""

    def superseded(self, rollout_id: str, attempt: int, newest: int = 0) -> None:
        """End an attempt that the attempt `newest` has replaced; 0 if that is unknown."""

    def entered(self, key: RolloutKey) -> None:
        """End the lower attempts of a rollout at their servers, because the ledger has its newest attempt."""

    def cancel_leaving(self, rollout_id: str) -> None:
        """Cancel the lower attempts of a rollout at their servers, once the ledger has the newest attempt."""

    def cancel_later(self, server: "AgentServerLink", rollout_id: str) -> None:
        """After a pause, cancel a rollout's attempts in `leaving` again, because the server refused to cancel one."""

    def later(self, after: float, call: Callable[[], None], rollout: Rollout) -> None:
        """Call a function after `after` seconds, unless the trainer is closed first. An error ends the rollout."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The identity that a server reports."""

    journal_id: str = ""
    """The id of the server's journal. A server that has lost its journal, and so its rollouts, reports another id."""
    process_id: str = ""
    version: str = ""
    agent_loops: tuple[str, ...] = ()


class AgentServerLink(ABC):
    """One agent server, as the scheduler sees it.

    The link remembers each rollout that is assigned to the server until the rollout ends. A subclass sends the
    rollouts, and sends them again when the connection was interrupted.
    """

    def __init__(self, name: str, scheduler: SchedulerPort, *, server_key: str = "") -> None:
        self.name = name
        """The server's target, or the address from which it connected to this trainer."""
        self.credential = ""
        """The name of the credential with which a server connected to this trainer."""
        self.server_key = server_key
        """The ledger's key for this server; empty if the ledger does not know the server."""
        self.scheduler = scheduler
        self.cache = scheduler.cache
        ledger = self.ledger = scheduler.ledger
        kept, journal_id = ledger.attachment(server_key) if ledger is not None and server_key else ("", "")
        self.kept_attachment_id = kept
        self.identity = ServerIdentity(journal_id=journal_id)
        """The newest identity that the server reported."""
        self.features: frozenset[str] = frozenset()
        """The features of the server on the newest connection."""
        self.window = 0
        """How many rollouts may be open on the server."""
        self.rollouts: dict[RolloutKey, Rollout] = {}
        """Unfinished rollouts that are assigned to this server."""
        self.leaving: dict[RolloutKey, None] = {}
        """Attempts that may still run on this server, although their rollouts now run elsewhere."""
        self.problem: CallError | None = None
        """Why the last connection ended."""
        self.refusal: CallError | None = None
        """The permanent error of the last connection. It is set only for a server that was never attached."""
        self.used = False
        """Whether the server was ever attached."""
        self.retired = False
        """Whether the server was removed from the list of servers. It gets no new rollouts, and finishes its running
        ones."""

    @property
    @abstractmethod
    def attached(self) -> bool:
        """Whether the server can be reached now."""

    @property
    def usable(self) -> bool:
        """Whether the server can be reached now and is in the list of servers."""
        return self.attached and not self.retired

    @property
    def idle(self) -> bool:
        """Whether nothing needs this server any more: no rollout, no attempt to cancel, and no waiting call."""
        return not (self.rollouts or self.leaving)

    @abstractmethod
    def send_init(self, rollout: Rollout) -> None:
        """Send a rollout if the server can be reached. Otherwise the rollout is sent on the next connection."""

    @abstractmethod
    def cancel(self, rollout_id: str, reason: str, attempt: int = 0) -> "asyncio.Future[list[CancelResult]]":
        """Cancel a rollout on this server, now or on the next connection. The future raises Unavailable.

        Attempt 0 means the newest one, or any attempt if the server does not know the rollout yet.
        """

    @abstractmethod
    def cancel_attempt(self, key: RolloutKey) -> None:
        """Cancel an attempt in `leaving`, now or on the next connection."""

    @abstractmethod
    async def annotate(self, request: annotation_pb2.AnnotateRequest) -> annotation_pb2.AnnotateResponse:
        """Store an annotation. Survives interrupted connections. Raises CallError if the server refuses it."""

    @abstractmethod
    def events(
        self, rollout_id: str, attempt: int, after: int, *, tokens: bool
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        """Yield a rollout's events with numbers above `after`. Survives interrupted connections. Raises NotFound."""

    @abstractmethod
    def grant(self, open_chats: int) -> None:
        """Set how many chats the server may have open."""

    @abstractmethod
    def part(self) -> None:
        """End the connection once the queued messages are sent."""

    def close(self, error: Exception) -> None:  # noqa: B027 - a subclass without waiting calls has nothing to end
        """Fail every call that waits for this server with this error."""

    def lost(self, error: CallError) -> None:
        """Stop waiting for the server. If it comes back, its earlier rollouts are cancelled there."""
        self.leaving.update(dict.fromkeys(self.rollouts))
        self.close(error)

    @property
    def free(self) -> int:
        """How many more rollouts may be sent to this server."""
        return self.window - len(self.rollouts) - len(self.leaving) if self.usable else 0

    def hosts(self, agent_loop: str) -> bool:
        """Return whether the server has an agent loop of this name; "" matches any."""
        return not agent_loop or agent_loop in self.identity.agent_loops

    def identify(self, identity: ServerIdentity) -> None:
        """Record the identity that a server reports on a new connection.

        If the server has lost its journal, it may have run and forgotten an attempt whose Init it did not answer. Such
        a rollout runs as its next attempt, because the same attempt could get other replies for the same chats.
        """
        known, self.identity = self.identity.journal_id, identity
        if identity.journal_id != known:
            self.leaving.clear()
            unanswered = [each for each in self.rollouts.values() if known and each.sent and not each.opened]
            if unanswered:
                log.warning("server %s has lost its journal; %d rollouts start again", self.name, len(unanswered))
            for rollout in unanswered:
                self.scheduler.lost(rollout, f"server {self.name} has lost its journal")
        if self.ledger is not None and self.server_key:
            self.ledger.record_server(self.server_key, identity.journal_id)
        self.problem = self.refusal = None
        self.used = True

    def adopt(self, rollout: Rollout) -> None:
        """Assign a rollout to this server without sending it."""
        rollout.server = self
        self.rollouts[rollout.key] = rollout

    def release(self, rollout: Rollout) -> None:
        """Forget a rollout that has ended or runs elsewhere."""
        self.rollouts.pop(rollout.key, None)

    def abandon(self, rollout: Rollout) -> None:
        """Release a rollout, but let its attempt run on this server until cancel_leaving() cancels it."""
        self.release(rollout)
        self.leaving[rollout.key] = None

    def cancel_leaving(self, rollout_id: str = "") -> None:
        """Cancel the attempts in `leaving`, of one rollout or, with "", of all.

        Skip a rollout whose newest attempt is not yet in the ledger.
        """
        for key in list(self.leaving):
            if rollout_id in ("", key[0]) and not self.cache.replaces(key[0]):
                self.cancel_attempt(key)

    def has_ended(self, rollout_id: str, attempt: int) -> None:
        """Record that this server no longer runs an attempt or lower attempts. Attempt 0 means all attempts."""
        for key in [key for key in self.leaving if key[0] == rollout_id and (key[1] <= attempt or not attempt)]:
            self.leaving.pop(key)
        self.scheduler.changed()

    def init_answered(self, rollout: Rollout, tools: Sequence[message_pb2.Tool]) -> bool:
        """Mark a rollout as open: its Init was accepted. If its tools cannot be read, refuse it and return False."""
        rollout.opened = True
        rollout.changed.set()
        try:
            self.cache.rollout(*rollout.key, self.cache.now()).tools = tools_from_wire(tools, "tools")
        except CallError as unreadable:
            self.cancel(rollout.request.rollout_id, "its tools cannot be read").add_done_callback(retrieve)
            error = Internal(f"the server's answer cannot be read: {unreadable}")
            self.scheduler.init_refused(rollout, self, error)
            return False
        if self.ledger is not None:
            self.ledger.opened(*rollout.key, message_pb2.Tools(tools=tools).SerializeToString())
        return True


def retrieve(done: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a future, so that asyncio does not log it when the caller has left."""
    if not done.cancelled():
        done.exception()
