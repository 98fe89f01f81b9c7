"""One attempt of one rollout, as the engine keeps it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.ports import ChatModel, ResultSink
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.engine.lifecycle import TERMINAL
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.engine.recording import Recording
from osmosis_grpc.types import (
    Activity,
    Completion,
    CompletionStatus,
    EndedBy,
    Failure,
    InitRequest,
    JournaledRollout,
    RolloutInfo,
    RolloutState,
    ToolDict,
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenant:
    """Who shares an owner's slots with others: one attachment, or all callbacks of the owner. The engine counts."""

    open: int = 0
    """Rollouts taken in and not ended."""
    running: int = 0
    """Slots taken."""
    undelivered: int = 0
    """Completions on their way."""
    lost: bool = False
    """Away for longer than the grace period."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a rollout's calls go."""

    chat: ChatModel
    complete: ResultSink
    key: object = None
    """Equal for the same place: an Init from another place re-points the rollout."""
    knows: bool = False
    """Whether it knows the tokens of earlier chats, so that no chat has to tell them."""
    refers: bool = False
    """Whether it keeps what it answered, so that completions only refer to its chats."""
    tenant: Tenant | None = None
    """None: one of those that only have a callback."""
    attachment_id: str = ""
    """Of the attachment that its calls go to; empty for a callback."""
    run: str = ""
    """Stands for the run of its trainer where others may see it; empty where that has no name."""
    trainer: object = None
    """Equal for all that goes to one trainer, whatever its credential or state; None: nothing else does."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rollout is going to end. The first one stands."""

    status: CompletionStatus
    finish_reason: str = ""
    failure: Failure | None = None
    result: RolloutResult | None = None
    deliver: bool = True
    """False for a superseded attempt, which sends no completion."""


@dataclass(slots=True, eq=False)
class Record:
    """Mutable, and only the engine mutates it."""

    init: InitRequest
    owner: str
    peer: Peer
    tenant: Tenant
    accept_time: float
    meter: Meter
    accepted: "asyncio.Future[None]"
    """Done once the rollout is accepted, or failed when it was refused."""
    state: RolloutState = RolloutState.ACCEPTED
    sequence: int = 0
    """Orders records by acceptance; 0 before that."""
    agent_loop: str = ""
    tools: Sequence[ToolDict] = ()
    cancel_reason: str | None = None
    """A cancel that came before acceptance was done."""
    timeout: float | None = None
    """The server's agent_timeout, in seconds from the start; None where the request names its own."""
    deadline: float | None = None
    """Monotonic."""
    start_time: float | None = None
    end_time: float | None = None
    ended: float | None = None
    """Monotonic."""
    verdict: Verdict | None = None
    reserved: bool = False
    """Whether Admission holds a place for it until it is accepted."""
    counted: bool = False
    """Whether `tenant.open` counts it."""
    slot: bool = False
    """Whether it has a slot."""
    report: tuple[Completion, EndedBy] | None = None
    """Its end, once that is written to the log; then nothing else can be its end."""
    completion: Completion | None = None
    ended_by: EndedBy = EndedBy()
    agent_version: str = ""
    """Of the agent loop that ran it."""
    undelivered: bool = False
    dropped: bool = False
    """Superseded while it was undelivered."""
    settled: bool = False
    """No further event is possible."""
    last_number: int = 0
    """Of the newest event that is committed."""
    written: int = 0
    """Of the newest event that is written."""
    journaled: bool = True
    """Whether its events can be committed; once they cannot, it goes on without."""
    parked: bool = False
    """It stays in the journal, unfinished, for the next process."""
    left_over: bool = False
    """It was accepted by another process: its agent starts once that is committed, so that a crash is counted."""
    recording: Recording | None = None
    """What it was answered before the server was started again."""
    session: Any = None
    """The RolloutSession of the running agent."""
    task: "asyncio.Task[Any] | None" = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    calls: set[Any] = field(default_factory=set)
    """Calls on their way, futures and the like; cancelled when the rollout ends or is re-pointed."""
    waiters: set[asyncio.Event] = field(default_factory=set)
    """Set when an event is committed."""
    repointed: asyncio.Event | None = None
    """Made by whoever waits for a re-pointing; set by it."""
    doing: dict[object, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    """What the agent is doing, newest last: in some words, and since when."""
    did: tuple[object, ...] = ()
    """What it finished last, in such words."""
    called: tuple[str, ...] = ()
    """The tools that the newest reply calls."""
    progress_time: float = 0.0
    """When something last happened: Unix seconds."""
    progress: float = 0.0
    """The same, monotonic."""
    stall: float | None = None
    """The `progress` of the newest stall that was logged."""
    rollout_id: str = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self.rollout_id, self.attempt = self.init.request.rollout_id, self.init.request.attempt

    @property
    def live(self) -> bool:
        """Not ended yet."""
        return self.state not in TERMINAL

    @classmethod
    def of(
        cls,
        entry: JournaledRollout,
        peer: Peer,
        tenant: Tenant,
        now: float,
        elapsed: float,
        default_timeout: float | None = None,
    ) -> "Record":
        """A rollout that a journal kept; it was accepted `elapsed` seconds before the monotonic time `now`."""
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.set_result(None)
        timeout = entry.init.request.agent_timeout
        over = entry.end_time is not None
        return cls(
            entry.init,
            entry.owner,
            peer,
            tenant,
            entry.accept_time,
            Meter(now - elapsed),
            accepted,
            state=entry.state if over else RolloutState.ACCEPTED,
            sequence=entry.sequence,
            agent_loop=entry.agent_loop,
            tools=entry.tools,
            deadline=None if timeout is None else now + min(max(timeout - elapsed, 0.0), timeout),
            start_time=entry.start_time,
            end_time=entry.end_time,
            ended=now if over else None,
            completion=entry.completion,
            ended_by=entry.ended_by,
            undelivered=entry.undelivered,
            settled=entry.settled,
            verdict=Verdict(CompletionStatus(entry.state.value)) if over else None,
            last_number=entry.last_number,
            written=entry.last_number,
        )

    def entry(self) -> JournaledRollout:
        """What a journal has to know of it."""
        return JournaledRollout(
            init=self.init,
            tools=self.tools,
            owner=self.owner,
            attachment_id=self.peer.attachment_id,
            sequence=self.sequence,
            agent_loop=self.agent_loop,
            accept_time=self.accept_time,
        )

    def next_turn(self) -> asyncio.Event:
        """What the next re-pointing sets."""
        if self.repointed is None or self.repointed.is_set():
            self.repointed = asyncio.Event()
        return self.repointed

    def wake(self) -> None:
        """Whoever waits with a call for it waits no longer."""
        if self.repointed is not None:
            self.repointed.set()

    def turn(self) -> None:
        """Where its calls go has changed: those on their way are given up and made anew."""
        self.wake()
        for call in list(self.calls):
            call.cancel()

    def activity(self) -> Activity:
        """What it is doing now."""
        if self.state is RolloutState.RUNNING and self.verdict is None:
            called = f"agent (called: {', '.join(self.called)})" if self.called else "agent"
            since = self.progress_time or self.start_time or self.accept_time
            words, since = next(reversed(self.doing.values()), ((called,), since))
            return Activity(" ".join(map(str, words)), since)
        if self.live:
            stages = {RolloutState.RUNNING: "stopping", RolloutState.REPORTING: "reporting"}
            return Activity(stages.get(self.state, "queued"), self.accept_time)
        return Activity("delivering" if self.undelivered else "ended", self.end_time or self.accept_time)

    def info(self) -> RolloutInfo:
        """Where it stands, without its completion."""
        return RolloutInfo(
            rollout_id=self.rollout_id,
            attempt=self.attempt,
            agent_loop=self.agent_loop,
            state=self.state,
            activity=self.activity(),
            group=self.init.request.group,
            accept_time=self.accept_time,
            start_time=self.start_time,
            end_time=self.end_time,
            last_number=self.last_number,
            undelivered=self.undelivered,
        )
