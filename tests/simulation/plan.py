"""What one seed does: its servers, its trainers, its rollouts, and the faults that are on.

Each seed turns on a random subset of the faults (swarm testing), because faults that always come together hide each
other. A Plan is drawn from the seed alone, before the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.processes import Randomness

FAULTS: Mapping[str, tuple[float, float]] = {
    "cut": (0.5, 6.0),
    "half open": (4.0, 30.0),
    "partition": (4.0, 30.0),
    "one-way partition": (4.0, 30.0),
    "stop": (4.0, 30.0),
    "crash server": (4.0, 30.0),
    "crash trainer": (4.0, 30.0),
    "crash at a commit": (3.0, 20.0),
    "disk error": (3.0, 20.0),
    "disk full": (8.0, 40.0),
    "clock jump": (3.0, 20.0),
    "drain": (6.0, 40.0),
    "restart in good order": (8.0, 40.0),
    "forget": (10.0, 60.0),
    "readdress": (8.0, 60.0),
    "pause": (3.0, 20.0),
    "cancel": (1.0, 8.0),
    "supersede": (1.0, 8.0),
    "duplicate": (0.5, 5.0),
    "conflict": (1.0, 8.0),
    "spike": (2.0, 15.0),
}
"""For each fault that comes at random moments: the least and the largest mean of the seconds between two."""
NEW_FAULTS: Mapping[str, tuple[float, float]] = {"slow disk": (2.0, 10.0)}
"""Faults that are drawn from a stream of their own, so that they change no plan of a seed that does not have them."""
SERVER_FAULTS: Mapping[str, tuple[float, float]] = {
    "rename": (2.0, 15.0),
    "worker list": (4.0, 30.0),
    "rolling restart": (8.0, 40.0),
}
"""Faults of worlds whose servers have workers, and come and go. They are drawn from a stream of their own."""
SERVERS_CHANGE = 0.3
"""The share of such worlds."""
ROUTED = 0.7
"""The share of them whose workers pass calls on to each other."""
CONDITIONS = (
    "lossy calls",
    "slow network",
    "failing policy",
    "slow policy",
    "wild agents",
    "tiny limits",
    "short times",
)
"""Conditions that last for a whole run."""
NEW_CONDITIONS = ("foreign trainer",)
"""Conditions that are drawn from a stream of their own."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """One rollout that an application asks for."""

    rollout_id: str
    at: float
    """The application asks for it at this simulated second."""
    agent: str
    script: Mapping[str, Any]
    """What the agent does; see agents.py."""
    agent_timeout: float | None = None
    priority: int = 0
    evaluation: bool = False
    watched: bool = False
    """Whether the application reads the rollout's events."""


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """One trainer."""

    name: str
    transport: str
    """attach, accept or callback."""
    ledger: bool
    rollouts: tuple[RolloutPlan, ...]
    servers: tuple[int, ...]
    """The servers that it uses."""
    config: Mapping[str, Any] = field(default_factory=dict)
    until: float | None = None
    """It is closed in good order at this second, though rollouts are left, and started again. None: only at the end."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One agent server."""

    name: str
    journal: bool
    """Whether it has a journal on disk."""
    config: Mapping[str, Any]
    workers: int = 1
    """The number of its processes."""
    routed: bool = False
    """Whether the workers pass calls on to each other. Otherwise each answers for itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one seed."""

    seed: int
    servers: tuple[ServerPlan, ...]
    trainers: tuple[TrainerPlan, ...]
    faults: Mapping[str, float]
    """The mean pause in seconds of each fault that is on."""
    conditions: frozenset[str]
    faults_until: float
    """At this second the faults end."""

    @property
    def rollouts(self) -> int:
        """The number of rollouts."""
        return sum(len(trainer.rollouts) for trainer in self.trainers)


def plan_of(seed: int, randomness: Randomness, *, rollouts: int = 32) -> Plan:
    """Returns the plan of a seed with about so many rollouts."""
    draw = randomness("plan")
    conditions = frozenset(name for name in CONDITIONS if draw.random() < 0.3)
    share = draw.choice((0.0, 0.15, 0.3, 0.5, 1.0))
    faults = {name: draw.uniform(*means) for name, means in FAULTS.items() if draw.random() < share}
    servers = tuple(_server(n, draw, conditions) for n in range(1, draw.choice((1, 1, 2, 3)) + 1))
    duration = draw.uniform(3.0, 40.0)
    count = draw.choice((1, 1, 2, 3))
    trainers = tuple(
        _trainer(n, draw, conditions, len(servers), rollouts // count, duration) for n in range(1, count + 1)
    )
    more = randomness("more of the plan")
    coming = randomness("servers that come and go")
    if coming.random() < SERVERS_CHANGE:
        servers = tuple(replace(server, workers=coming.choice((1, 2, 3))) for server in servers)
        faults |= {name: coming.uniform(*means) for name, means in SERVER_FAULTS.items() if coming.random() < 0.6}
        if randomness("calls between workers").random() < ROUTED:
            servers = tuple(replace(server, routed=server.workers > 1) for server in servers)
    faults |= {name: more.uniform(*means) for name, means in NEW_FAULTS.items() if more.random() < 0.3}
    conditions |= {name for name in NEW_CONDITIONS if more.random() < 0.3}
    return Plan(seed, servers, trainers, faults, conditions, faults_until=duration + draw.uniform(1.0, 20.0))


def _server(number: int, draw: Random, conditions: frozenset[str]) -> ServerPlan:
    tiny, short = "tiny limits" in conditions, "short times" in conditions
    config: dict[str, Any] = {
        "max_concurrent": draw.choice((1, 2, 3) if tiny else (4, 16, 64)),
        "max_queued": draw.choice((0, 1, 3) if tiny else (None, 8, 100)),
        "record_ttl": 900.0,
        "trainer_grace": draw.choice((2.0, 8.0) if short else (30.0, 120.0)),
        "chat_silence": draw.choice((2.0, 5.0) if short else (10.0, 50.0)),
        "outbox_delay": (0.5, draw.choice((2.0, 30.0))),
        "retry_delay": (0.25, draw.choice((1.0, 5.0))),
        "agent_timeout": 10_000.0,
    }
    return ServerPlan(f"server-{number}", journal=draw.random() < 0.8, config=config)


def _trainer(
    number: int, draw: Random, conditions: frozenset[str], servers: int, rollouts: int, duration: float
) -> TrainerPlan:
    name = f"trainer-{number}"
    short = "short times" in conditions
    config: dict[str, Any] = {
        "lost_after": draw.choice((5.0, 20.0) if short else (60.0, 120.0)),
        "max_attempts": draw.choice((3, 5, 8)),
        "max_open_chats": draw.choice((1, 2, 4) if "tiny limits" in conditions else (32, 16_384)),
        "delta": draw.random() < 0.7,
        "longest_pause": draw.choice((0.5, 2.0, 10.0)),
    }
    chosen = sorted(draw.sample(range(servers), draw.randint(1, servers)))
    plans = tuple(_rollout(f"{name}-r{n}", draw, conditions, duration) for n in range(1, rollouts + 1))
    return TrainerPlan(
        name=name,
        transport=draw.choice(("attach", "attach", "accept", "callback")),
        ledger=draw.random() < 0.7,
        rollouts=plans,
        servers=tuple(chosen),
        config=config,
        until=draw.uniform(1.0, duration) if draw.random() < 0.1 else None,
    )


def _rollout(rollout_id: str, draw: Random, conditions: frozenset[str], duration: float) -> RolloutPlan:
    chats = draw.choice((1, 1, 2, 2, 3, 4, 6))
    script: dict[str, Any] = {"chats": chats, "work": draw.choice((0.0, 0.0, 0.01, 0.2, 1.0))}
    if draw.random() < 0.25:
        script["aside"] = draw.randint(1, 2)
    if draw.random() < 0.25:
        script["tools"] = True
    if chats > 1 and draw.random() < 0.2:
        script["branch"] = draw.randint(1, chats - 1)
    if draw.random() < 0.1:
        script["parts"] = True
    timeout = None
    if "wild agents" in conditions and draw.random() < 0.4:
        wild = draw.choice(("raise", "error", "hang", "ignore", "twice", "logs", "nothing", "bad reward", "swallow"))
        script["wild"] = wild
        if wild in ("hang", "ignore"):
            timeout = draw.uniform(0.5, 20.0)
    return RolloutPlan(
        rollout_id,
        at=draw.random() ** 2 * duration,
        agent=draw.choice(("passenger", "traveller", "traveller", "traveller")),
        script=script,
        agent_timeout=timeout,
        priority=draw.choice((0, 0, 0, 1, -1)),
        evaluation=draw.random() < 0.1,
        watched=draw.random() < 0.2,
    )
