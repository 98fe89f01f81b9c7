"""The parameters of a run, and a pool of workers that runs rollouts."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.script import IDS_PER_MESSAGE

Done = Callable[[], None]
"""Called after every rollout that ended as expected."""
Route = Callable[[str], Awaitable[str]]
"""Takes an address and returns the one to use: the same, or that of a Tap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The parameters of a run."""

    mode: str
    rollouts: int = 1000
    turns: int = 8
    tokens: int = 256
    """Ids and logprobs of every reply; 0 for replies without tokens."""
    in_flight: int = 64
    latency: float = 0.0
    """Seconds after which the trainer answers a chat."""
    ledger: str = ""
    """The trainer's ledger file; empty for none."""

    @property
    def stalled_after(self) -> float:
        """Seconds without the end of a rollout after which all open rollouts count as lost."""
        return 60.0 + 2 * self.turns * self.latency

    @property
    def array_bytes(self) -> int:
        """The size of a rollout's token arrays: ids and logprobs of the replies, ids of the other messages."""
        return self.turns * (8 * self.tokens + (4 * IDS_PER_MESSAGE if self.tokens else 0))


def new_names() -> Iterator[str]:
    """Return endless rollout ids of one length, different for each run."""
    run = secrets.token_hex(4)
    return (f"{run}-{number:08d}" for number in itertools.count())


async def in_flight(names: Iterable[str], limit: int, one: Callable[[str], Awaitable[None]], done: Done) -> None:
    """Run `one` for every name, at most `limit` at a time."""
    left = iter(names)

    async def worker() -> None:
        for name in left:
            await one(name)
            done()

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(worker())
