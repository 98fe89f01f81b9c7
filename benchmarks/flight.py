"""What is run, and the running of many at once."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.script import IDS_PER_MESSAGE

Done = Callable[[], None]
"""Told of every rollout that has ended as it should."""
Route = Callable[[str], Awaitable[str]]
"""From an address to the one to use for it: itself, or that of a Tap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The parameters of a run."""

    mode: str
    rollouts: int = 1000
    turns: int = 8
    tokens: int = 256
    """Ids and logprobs of every reply; 0 for none at all."""
    in_flight: int = 64
    latency: float = 0.0
    """Seconds after which the trainer answers a chat."""
    ledger: str = ""
    """The trainer's ledger file; empty for none."""

    @property
    def stalled_after(self) -> float:
        """Seconds without a rollout's end after which those that are open count as lost."""
        return 60.0 + 2 * self.turns * self.latency

    @property
    def array_bytes(self) -> int:
        """The size of a rollout's token arrays: ids and logprobs of the replies, ids of the other messages."""
        return self.turns * (8 * self.tokens + (4 * IDS_PER_MESSAGE if self.tokens else 0))


def new_names() -> Iterator[str]:
    """Rollout ids without end, all of one length; another run has others."""
    run = secrets.token_hex(4)
    return (f"{run}-{number:08d}" for number in itertools.count())


async def in_flight(names: Iterable[str], limit: int, one: Callable[[str], Awaitable[None]], done: Done) -> None:
    """Run `one` for every name, so many at a time."""
    left = iter(names)

    async def worker() -> None:
        for name in left:
            await one(name)
            done()

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(worker())
