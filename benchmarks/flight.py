"""The parameters of a run with their options, and a pool of workers that runs rollouts."""

import argparse
import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Parser, measured, show
from benchmarks.script import IDS_PER_MESSAGE

Done = Callable[[], None]
"""Called after every rollout that ended as expected."""
Route = Callable[[str], Awaitable[str]]
"""Takes an address and returns the address to use: the same address, or the address of a Tap."""


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
    """The trainer waits this many seconds before it answers a chat."""
    ledger: str = ""
    """The trainer's ledger file; empty for none."""
    confirm_each: bool = False
    """Whether the trainer waits for the confirmation of an outcome before it takes the next one."""

    @property
    def stalled_after(self) -> float:
        """When no rollout ends for this many seconds, all open rollouts count as lost."""
        return 60.0 + 2 * self.turns * self.latency

    @property
    def array_bytes(self) -> int:
        """The size of a rollout's token arrays: ids and logprobs of the replies, ids of the other messages."""
        return self.turns * (8 * self.tokens + (4 * IDS_PER_MESSAGE if self.tokens else 0))


def new_names() -> Iterator[str]:
    """Return an endless iterator of rollout ids. All have the same length, and each run has different ids."""
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


MODES = ("attach", "callback", "http", "sdk", "tuned")
NAMES = ("rollouts", "turns", "tokens", "in_flight", "latency")


def add_work(
    parser: argparse.ArgumentParser,
    *,
    modes: Sequence[str] = MODES,
    mode: str | None = None,
    without: Sequence[str] = (),
    **work: Any,
) -> None:
    """Add an option for every parameter of the work except those in `without`. Without `mode`, --mode is required."""
    parser.add_argument(
        "--mode", choices=modes, default=mode, required=mode is None, help=f"[{mode}]" if mode else None
    )
    defaults = Work(mode=mode or "", **work)
    for name in NAMES:
        default = getattr(defaults, name)
        if name in without:
            parser.set_defaults(**{name: default})
            continue
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, metavar="N", help=f"[{default:g}]")


def work_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Work:
    """Return the work of the options. A bad value ends the process with exit code 2."""
    if given.rollouts < 1 or given.turns < 1 or given.in_flight < 1 or given.tokens < 0 or given.latency < 0:
        parser.error("--rollouts, --turns and --in-flight are at least 1, --tokens and --latency at least 0")
    return Work(mode=given.mode, **{name: getattr(given, name) for name in NAMES})


def run_work(doc: str | None, measure: Callable[[Work], Coroutine[Any, Any, dict[str, Any]]], **defaults: Any) -> None:
    """Run a benchmark whose options are those of its work, and print its figures. See add_work for `defaults`."""
    parser = Parser(doc)
    add_work(parser, **defaults)
    given = parser.parse_args()
    show(measured(measure(work_of(parser, given))), given.json)
