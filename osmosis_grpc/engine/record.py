"""One attempt of one rollout, as the engine keeps it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.ports import ChatModel, ResultSink
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.engine.lifecycle import TERMINAL
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.types import (
    Activity,
    Completion,
    CompletionStatus,
    Failure,
    InitRequest,
    RolloutInfo,
    RolloutState,
    ToolDict,
)


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a rollout's calls go."""

    chat: ChatModel
    complete: ResultSink
    key: object = None
    """Equal for the same place: an Init from another place re-points the rollout."""


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
    deadline: float | None = None
    """Monotonic."""
    start_time: float | None = None
    end_time: float | None = None
    ended: float | None = None
    """Monotonic."""
    verdict: Verdict | None = None
    completion: Completion | None = None
    undelivered: bool = False
    dropped: bool = False
    """Superseded while it was undelivered."""
    settled: bool = False
    """No further event is possible."""
    last_number: int = 0
    session: Any = None
    """The RolloutSession of the running agent."""
    task: "asyncio.Task[Any] | None" = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    calls: "set[asyncio.Future[Any]]" = field(default_factory=set)
    """Chats on their way; cancelled when the rollout ends or is re-pointed."""
    waiters: set[asyncio.Event] = field(default_factory=set)
    """Set when an event is committed."""
    repointed: asyncio.Event = field(default_factory=asyncio.Event)
    doing: dict[object, Activity] = field(default_factory=dict)
    """What the agent is doing, newest last."""

    @property
    def rollout_id(self) -> str:
        return self.init.request.rollout_id

    @property
    def attempt(self) -> int:
        return self.init.request.attempt

    @property
    def live(self) -> bool:
        """Not ended yet."""
        return self.state not in TERMINAL

    def turn(self) -> None:
        """Where its calls go has changed: those on their way are given up and made anew."""
        self.repointed.set()
        for call in list(self.calls):
            call.cancel()

    def activity(self) -> Activity:
        """What it is doing now."""
        if self.state is RolloutState.RUNNING and self.verdict is None:
            return next(reversed(self.doing.values()), Activity("agent", self.start_time or self.accept_time))
        if self.live:
            words = {RolloutState.RUNNING: "stopping", RolloutState.REPORTING: "reporting"}
            return Activity(words.get(self.state, "queued"), self.accept_time)
        return Activity("delivering" if self.undelivered else "ended", self.end_time or self.accept_time)

    def begin(self, description: str, now: float) -> Callable[[], None]:
        """The agent does something; call what is returned when it is over."""
        key = object()
        self.doing[key] = Activity(description, now)

        def over() -> None:
            self.doing.pop(key, None)

        return over

    def info(self, *, with_completion: bool) -> RolloutInfo:
        """Where it stands."""
        return RolloutInfo(
            rollout_id=self.rollout_id, attempt=self.attempt, agent_loop=self.agent_loop, state=self.state,
            activity=self.activity(), group=self.init.request.group, accept_time=self.accept_time,
            start_time=self.start_time, end_time=self.end_time, last_number=self.last_number,
            undelivered=self.undelivered, completion=self.completion if with_completion else None,
        )  # fmt: skip
