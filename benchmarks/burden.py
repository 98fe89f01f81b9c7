"""The rate of a server, and its processor time for a rollout, with and without a burden.

Phases alternate, and a ratio is of neighbouring phases. Other work on the machine changes the rate more than the time.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.figures import progress
from benchmarks.flight import Work, new_names
from benchmarks.grpc_trainers import GrpcTrainer
from benchmarks.processes import Server
from benchmarks.tap import straight


class Ratios:
    """Runs rollouts on a server, with a burden in every second phase. `flight` is the number of rollouts at once."""

    def __init__(self, started: Server, alternations: int, seconds: float, flight: int) -> None:
        self._started = started
        self._alternations = alternations
        self._seconds = seconds
        self._work = Work(mode="attach", in_flight=flight)
        self._done = 0

    def _count(self) -> None:
        self._done += 1

    async def measure(self, name: str, burden: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        """Return the rate without the burden, and the ratios of both rates and of both times for a rollout."""
        rates: list[float] = []
        costs: list[float] = []
        async with GrpcTrainer(self._work, self._started, straight) as trainer:
            running = asyncio.ensure_future(trainer.run(_names(), self._count))
            await asyncio.sleep(self._seconds / 2)
            for phase in range(2 * self._alternations + 1):
                progress(f"rates: {name}, phase {phase} of {2 * self._alternations}")
                burdens = [asyncio.ensure_future(burden())] if phase % 2 else []
                before, began, used = self._done, time.perf_counter(), self._started.cpu_seconds
                done, _ = await asyncio.wait([running, *burdens], timeout=self._seconds, return_when="FIRST_COMPLETED")
                rates.append((self._done - before) / (time.perf_counter() - began))
                costs.append((self._started.cpu_seconds - used) / max(1, self._done - before))
                for task in done:
                    task.result()  # the end of a task is its failure
                for task in burdens:
                    await _ended(task)
            await _ended(running)
        ratios = _ratios(rates)
        return {
            f"{name}_ratio": round(statistics.median(ratios), 3),
            f"{name}_ratios": [round(ratio, 3) for ratio in ratios],
            f"{name}_cpu_ratio": round(statistics.median(_ratios(costs)), 3),
            f"{name}_rollouts_per_s": round(statistics.median(rates[::2]), 1),
        }


def _ratios(values: Sequence[float]) -> list[float]:
    """Return the value of each phase with the burden, over the mean of the phases before and after it."""
    before, burdened, after = values[:-1:2], values[1::2], values[2::2]
    return [value / ((one + other) / 2) for one, value, other in zip(before, burdened, after, strict=True)]


async def _ended(task: "asyncio.Future[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _names() -> Iterator[str]:
    return itertools.islice(new_names(), 10**9)
