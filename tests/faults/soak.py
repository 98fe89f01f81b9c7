"""Short rollouts for a long time, agent server and trainer in one process: whether memory stays what it is.

python -m tests.faults.soak [--rollouts 100000] [--rate 300] [--ttl 60] [--budget 256] [--in-flight 32]
    [--state-dir DIR] [--ledger FILE] [--json]

Each rollout has two chats. What has ended is kept for `--ttl` seconds (and twice as long by the trainer) and within
`--budget` MiB; counted are the rollouts from twice the ttl onward, at an even rate, so that as many are kept at any
time. The slope is that of the least squares through the samples of resident memory, one a second. File descriptors,
tasks and threads are those before the first rollout and after the last.
"""

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.policy import scripted
from benchmarks.work import Turns
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig

CHATS, TOKENS = 2, 32
SETTLE = 2.0
"""Seconds in which what is over lets go of what it had."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def held() -> dict[str, int]:
    """What must not grow."""
    threads = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("Threads:"))
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": int(threads.split()[1]),
    }


class Soak:
    """One soak: the rollouts, and what was seen of the process meanwhile."""

    def __init__(self, given: Namespace) -> None:
        self._given = given
        self._began = 0.0
        self._done = 0
        self._counted_from: int | None = None
        self._failed = 0
        self._samples: list[tuple[int, int]] = []
        """Rollouts done and bytes, once a second, from twice the ttl onward."""
        self._most = 0

    async def run(self) -> dict[str, Any]:
        """The whole of it. Raises Broken."""
        given = self._given
        config = ServerConfig(
            record_ttl=given.ttl, memory_budget=given.budget * 1024**2, max_concurrent=2 * given.in_flight
        )
        server = AgentServer([Turns()], port=0, config=config, state_dir=given.state_dir)
        async with (
            server,
            Trainer(
                server.address, scripted(TOKENS), ledger=given.ledger, config=TrainerConfig(ttl=2 * given.ttl)
            ) as trainer,
        ):
            await self._roll(trainer, (request(f"first-{index}") for index in range(50)))
            await asyncio.sleep(SETTLE)  # what is over releases its resources
            before = held()
            self._began, self._done = time.monotonic(), 0
            sampling = asyncio.create_task(self._sample())
            await self._roll(trainer, self._requests())
            sampling.cancel()
            self._samples.append((self._done, resident()))
            seconds = time.monotonic() - self._began
            await asyncio.sleep(SETTLE)  # what is over releases its resources
            after = held()
        if self._failed:
            raise Broken(f"{self._failed} rollouts did not complete")
        return self._figures(before, after, seconds)

    async def _roll(self, trainer: Trainer, requests: AsyncIterator[RolloutRequest] | Iterator[RolloutRequest]) -> None:
        async with aclosing(trainer.run(requests, max_in_flight=self._given.in_flight)) as completions:
            async for completion in completions:
                self._done += 1
                self._failed += completion.status != "COMPLETED"
                await completion.confirm()

    async def _requests(self) -> AsyncIterator[RolloutRequest]:
        """At an even rate, until enough are counted."""
        number = 0
        while self._counted_from is None or self._done - self._counted_from < self._given.rollouts:
            pause = self._began + number / self._given.rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)  # the even rate
            number += 1
            yield request(f"soak-{number}")

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)  # between two samples
            elapsed, size = time.monotonic() - self._began, resident()
            self._most = max(self._most, size)
            if elapsed >= 2 * self._given.ttl:
                if self._counted_from is None:
                    self._counted_from = self._done
                self._samples.append((self._done, size))
            if int(elapsed) % 30 == 0:
                progress(f"{elapsed:.0f} s: {self._done} rollouts, {size / 1e6:.0f} MB")

    def _figures(self, before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, Any]:
        done, sizes = np.array(self._samples, dtype=float).T
        slope, _ = np.polyfit(done, sizes, 1)
        return {
            "bytes_per_rollout": round(float(slope), 1),
            "rollouts_counted": int(done[-1] - done[0]),
            "rollouts": self._done,
            "rollouts_per_s": round(self._done / seconds, 1),
            "rss_mb": {
                "at_first": round(sizes[0] / 1e6, 1),
                "at_last": round(sizes[-1] / 1e6, 1),
                "most": round(self._most / 1e6, 1),
            },
            "before": before,
            "after": after,
            "same": before == after,
        }


def request(rollout_id: str) -> RolloutRequest:
    """Returns a rollout of two chats."""
    return RolloutRequest(rollout_id=rollout_id, messages=[{"role": "user", "content": "go"}], max_turns=CHATS)


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=100_000, rate=300.0, ttl=60.0, budget=256, in_flight=32)
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep a journal there")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="keep a ledger there")
    given = parser.parse_args()
    show(measured(Soak(given).run()), given.json)


if __name__ == "__main__":
    main()
