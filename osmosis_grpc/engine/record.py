"""Record: one attempt of one rollout in the engine, and the states of its lifecycle."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.ports import ChatModel, ResultSink
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.engine.recorded_chats import ForkedChats, Recording
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.protocol.types import (
    AbandonReason,
    Activity,
    EndedBy,
    InitRequest,
    JournaledRollout,
    OutcomeStatus,
    OutcomeSummary,
    RolloutInfo,
    RolloutOutcome,
    RolloutState,
    ToolDict,
    events,
)

TERMINAL = frozenset(RolloutState(status) for status in OutcomeStatus)
TRANSITIONS: dict[RolloutState, frozenset[RolloutState]] = {
    RolloutState.ACCEPTED: frozenset({RolloutState.QUEUED, RolloutState.RUNNING, RolloutState.REPORTING}),
    RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.REPORTING}),
    RolloutState.RUNNING: frozenset({RolloutState.REPORTING}),
    RolloutState.REPORTING: TERMINAL,
}
"""The states that may follow each state. No state follows a terminal state.

REPORTING lasts from the building of the outcome to the commit of the end.
"""


class LifecycleError(RuntimeError):
    """Raised for a transition that is not in TRANSITIONS. This is a bug of the engine."""


def advance(state: RolloutState, following: RolloutState) -> RolloutState:
    """Return `following`. Raises LifecycleError if `following` may not follow `state`."""
    if following not in TRANSITIONS.get(state, ()):
        raise LifecycleError(f"{following} does not follow {state}")
    return following


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenant:
    """One attachment, or all callbacks of an owner. The tenants of an owner share the owner's slots."""

    open: int = 0
    """The number of rollouts that have not ended."""
    running: int = 0
    """The number of used slots."""
    undelivered: int = 0
    repeats_ids: bool = False
    """Whether a prompt of the trainer repeated ids of an older chat, so that they had to be read from the journal.

    From then on, the ids of all chats are kept in memory."""
    lost: bool = False
    """Whether the trainer was away for longer than the grace period."""
    away_since: float | None = None
    """When the trainer was disconnected, in Unix seconds. None if it is connected, and for callbacks."""


ChatKey = tuple[str, int, str, int]
"""Names a chat: rollout id, attempt, sample, chat number.

As the argument of Peer.abandon, an empty sample means all samples, and chat number 0 means all chats.
"""


def _ignore(chat: ChatKey, reason: AbandonReason, /) -> None:
    """Do nothing: this peer cannot stop sampling."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The destination of a rollout's calls."""

    chat: ChatModel
    complete: ResultSink
    key: object = None
    """Equal keys mean the same peer. If an equal Init comes from another peer, the rollout is re-pointed: its calls go
    to the new peer from then on."""
    has_tokens: bool = False
    """Whether the peer has the tokens of earlier chats. If so, chats need not carry these tokens."""
    any_role: bool = False
    """Whether the peer accepts messages with unknown roles, as the legacy HTTP contract does."""
    accepts_references: bool = False
    """Whether the peer keeps its replies. If so, outcomes only refer to chats."""
    tenant: Tenant | None = None
    """None for callback trainers, which have no attachment."""
    attachment_id: str = ""
    """The id of the attachment that the calls go to. Empty for a callback."""
    trainer_run: str = ""
    """A public name for the run of the trainer. Empty if the run has no name."""
    destination_key: object = None
    """A key that all peers at one trainer address share. None if no other peer has the same address."""
    abandon: Callable[[ChatKey, AbandonReason], None] = _ignore
    """Called when replies to open chats are no longer wanted, with the reason.

    Also called for an attempt that a higher attempt replaces, even if no chat is open. Must not block or raise.
    """


@dataclass(slots=True, eq=False)
class Run:
    """The runner's part of a record: the agent, its deadline, and its activity."""

    meter: Meter
    timeout: float | None = None
    """The server's agent_timeout, in seconds from the start. None if the request has an agent_timeout.

    While the rollout is graded: the time limit of the grader, in seconds. None means no limit."""
    deadline: float | None = None
    """The monotonic time at which the agent_timeout ends, or the grader_timeout. None means no limit."""
    grading: bool = False
    """Whether the agent has returned, and its grader runs."""
    start_time: float | None = None
    termination: Termination | None = None
    """How the rollout ends; None until this is decided."""
    agent_version: str = ""
    parked: bool = False
    """Whether the rollout stays unfinished in the journal, for the next process."""
    left_over: bool = False
    """Whether an earlier process accepted the rollout.

    If so, the agent starts only after the event Started is committed. Then the next process can count a crash.
    """
    recording: Recording | None = None
    """The chats from before a restart of the server. None if the agent does not run again."""
    original: ForkedChats | None = None
    """The recorded chats of the rollout from which this one forks. None without a fork, or if they are gone."""
    session: Any = None
    """The RolloutSession of the running agent."""
    task: "asyncio.Task[Any] | None" = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    doing: dict[object, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    """The open chats and tools, the newest last, each with a description and its start time."""
    did: tuple[object, ...] = ()
    """The description of the chat or tool that ended last."""
    called: tuple[str, ...] = ()
    """The names of the tools that the newest reply calls."""
    progress_time: float = 0.0
    """The time of the newest event or tool call, in Unix seconds."""
    progress: float = 0.0
    """The monotonic time of the newest event or tool call."""
    stall: float | None = None
    """The value of `progress` when a stall was last logged."""

    def cancel_timers(self) -> None:
        """Cancel all timers of the rollout."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


@dataclass(slots=True, eq=False)
class Delivery:
    """The outbox's part of a record: the end of the rollout, and whether the outcome is delivered."""

    report: events.Ended | None = None
    """The event that ends the rollout. It is set when it is appended to the log, and does not change after that."""
    outcome: RolloutOutcome | None = None
    """The outcome. It is set when the end is committed."""
    summary: OutcomeSummary | None = None
    """The summary of the outcome. None until it is read from the journal or made from the outcome."""
    ended_by: EndedBy = EndedBy()
    end_time: float | None = None
    ended: float | None = None
    """The monotonic time of the end."""
    undelivered: bool = False
    dropped: bool = False
    """Whether a higher attempt replaced the rollout before its outcome was delivered."""
    settled: bool = False
    """Whether no further event is possible."""


@dataclass(slots=True, eq=False)
class Trail:
    """The event log's part of a record."""

    last_event_number: int = 0
    """The number of the newest committed event."""
    written: int = 0
    """The number of the newest appended event."""
    journaled: bool = True
    """Whether the events can be committed. If not, the rollout continues without events."""
    waiters: dict[asyncio.Event, None] = field(default_factory=dict)
    """All of these are set when an event is committed. An empty dict is smaller than an empty set."""


@dataclass(slots=True, eq=False)
class Record:
    """One attempt of one rollout. Only the engine changes a record.

    `run` belongs to the runner and its session. `delivery` belongs to the outbox. `trail` belongs to the event log.
    """

    init: InitRequest
    owner: str
    peer: Peer
    tenant: Tenant
    accept_time: float
    run: Run
    accepted: "asyncio.Future[None]"
    """Done when the rollout is accepted. If the rollout is refused, it has an exception."""
    state: RolloutState = RolloutState.ACCEPTED
    sequence: int = 0
    """The position in the order of acceptance. 0 before the acceptance."""
    agent_loop: str = ""
    tools: Sequence[ToolDict] = ()
    cancel_reason: str | None = None
    """The reason of a cancel that came before the acceptance was complete."""
    reserved: bool = False
    """Whether Admission has a reserved place for the rollout (see Admission.reserve)."""
    counted: bool = False
    """Whether `tenant.open` counts the rollout."""
    slot: bool = False
    delivery: Delivery = field(default_factory=Delivery)
    trail: Trail = field(default_factory=Trail)
    calls: dict[Any, None] = field(default_factory=dict)
    """The open calls to the peer. They are cancelled when the rollout ends or is re-pointed."""
    _repointed: asyncio.Event | None = None
    rollout_id: str = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.rollout_id, self.attempt = self.init.request.rollout_id, self.init.request.attempt

    @property
    def live(self) -> bool:
        """Whether the rollout has not ended."""
        return self.state not in TERMINAL

    @classmethod
    def of(cls, entry: JournaledRollout, peer: Peer, tenant: Tenant, now: float, elapsed: float) -> "Record":
        """Return the record of a rollout that is in a journal.

        The rollout was accepted `elapsed` seconds before the monotonic time `now`.
        """
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.set_result(None)
        timeout = entry.init.request.agent_timeout
        over = entry.end_time is not None
        deadline = None if timeout is None else now + min(max(timeout - elapsed, 0.0), timeout)
        return cls(
            entry.init,
            entry.owner,
            peer,
            tenant,
            entry.accept_time,
            Run(
                Meter(now - elapsed),
                deadline=deadline,
                start_time=entry.start_time,
                termination=Termination(OutcomeStatus(entry.state.value)) if over else None,
            ),
            accepted,
            state=entry.state if over else RolloutState.ACCEPTED,
            sequence=entry.sequence,
            agent_loop=entry.agent_loop,
            tools=entry.tools,
            delivery=Delivery(
                outcome=entry.outcome,
                summary=entry.summary if over else None,
                ended_by=entry.ended_by,
                end_time=entry.end_time,
                ended=now if over else None,
                settled=entry.settled,
            ),
            trail=Trail(last_event_number=entry.last_event_number, written=entry.last_event_number),
        )

    def count(self, counted: bool) -> None:
        """Start or stop counting the rollout in `tenant.open`. Idempotent."""
        self.tenant.open += counted - self.counted
        self.counted = counted

    def entry(self) -> JournaledRollout:
        """Return the journal's entry for the rollout."""
        return JournaledRollout(
            init=self.init,
            tools=self.tools,
            owner=self.owner,
            attachment_id=self.peer.attachment_id,
            sequence=self.sequence,
            agent_loop=self.agent_loop,
            accept_time=self.accept_time,
        )

    def repointed(self) -> asyncio.Event:
        """Return the asyncio.Event that the next re-pointing or the next wake() sets."""
        if self._repointed is None or self._repointed.is_set():
            self._repointed = asyncio.Event()
        return self._repointed

    def wake(self) -> None:
        """End every wait for repointed()."""
        if self._repointed is not None:
            self._repointed.set()

    def restart_calls(self) -> None:
        """Cancel the open calls, and end every wait. The callers then call the current peer."""
        self.wake()
        self.cancel_calls()

    def cancel_calls(self) -> None:
        """Cancel the open calls to the peer."""
        for call in list(self.calls):
            call.cancel()

    def activity(self) -> Activity:
        """Return the current activity of the rollout."""
        if self.state is RolloutState.RUNNING and self.run.termination is None:
            called = "grader" if self.run.grading else "agent"
            if self.run.called and not self.run.grading:
                called = f"agent (called: {', '.join(self.run.called)})"
            since = self.run.progress_time or self.run.start_time or self.accept_time
            words, since = next(reversed(self.run.doing.values()), ((called,), since))
            return Activity(" ".join(map(str, words)) + self._away(), since)
        if self.live:
            stages = {RolloutState.RUNNING: "stopping", RolloutState.REPORTING: "reporting"}
            return Activity(stages.get(self.state, "queued"), self.accept_time)
        stage = f"delivering{self._away()}" if self.delivery.undelivered else "ended"
        return Activity(stage, self.delivery.end_time or self.accept_time)

    def _away(self) -> str:
        since = self.tenant.away_since
        if since is None:
            return ""
        return f" (its trainer is not connected since {time.strftime('%H:%M:%SZ', time.gmtime(since))})"

    def info(self) -> RolloutInfo:
        """Return the state of the rollout, without the outcome."""
        summary, progress_time = self._summary(), None
        if self.live:
            progress_time = self.run.progress_time or self.run.start_time or self.accept_time
        return RolloutInfo(
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            agent_loop=self.agent_loop,
            state=self.state,
            activity=self.activity(),
            group=self.init.request.group,
            accept_time=self.accept_time,
            start_time=self.run.start_time,
            end_time=self.delivery.end_time,
            last_event_number=self.trail.last_event_number,
            undelivered=self.delivery.undelivered,
            reward=summary.reward,
            failure_reason=summary.failure_reason,
            failure_summary=summary.failure_summary,
            chats=summary.chats,
            response_tokens=summary.response_tokens,
            prompt_tokens=summary.prompt_tokens,
            finish_reason=summary.finish_reason,
            progress_time=progress_time,
            fork=self.init.request.fork,
        )

    def _summary(self) -> OutcomeSummary:
        delivery = self.delivery
        if delivery.outcome is not None and delivery.summary is None:
            delivery.summary = OutcomeSummary.of(delivery.outcome)
        return delivery.summary or self.run.meter.so_far()
