"""Many rollouts in flight at once, with a slow trainer: the server's memory, and the number of lost rollouts.

python -m benchmarks.in_flight [--mode attach] [--rollouts 10000] [--turns 8] [--tokens 256] [--latency 5] [--workers 1]
    [--json]

All rollouts start at once, and the server has a slot for each. `ideal_s` is turns x latency: the time if only the
trainer took time. `server_rss_mb` is the peak memory of the server; with workers, it is the sum of the peaks of the
supervisor and all workers, and `rss_mb_of_each` has each of them. Pages that processes share count for each.
`shared_once_mb` is the highest sum of one moment, read once a second, in which the pages of libraries count once.
"""

import asyncio
import itertools
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Self

from benchmarks.figures import Parser, measured, show
from benchmarks.flight import Work, add_work, new_names, work_of
from benchmarks.measure import TRAINERS, Watch, finish
from benchmarks.processes import Server, server
from benchmarks.tap import straight


class Highest:
    """The highest `shared_once_mb` of a server, read once a second while the context is open."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.mb = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        while True:
            self.mb = max(self.mb, self._server.shared_once_mb)
            await asyncio.sleep(1)


async def measure(work: Work, workers: int) -> dict[str, Any]:
    """Measure one wave of rollouts."""
    work = replace(work, in_flight=work.rollouts)
    with server(work.mode, work.in_flight, ("--workers", str(workers)) if workers > 1 else ()) as started:
        idle = started.peak_rss_mb
        async with TRAINERS[work.mode](work, started, straight) as trainer, Highest(started) as highest:
            watch = Watch(started, ())
            began = time.perf_counter()
            lost = await finish(trainer, list(itertools.islice(new_names(), work.rollouts)), watch, work.stalled_after)
            took = time.perf_counter() - began
        return {
            "benchmark": "in_flight",
            **asdict(work),
            "workers": workers,
            "server_rss_mb": round(started.peak_rss_mb),
            "rss_mb_of_each": [round(peak) for peak in started.peaks_mb],
            "shared_once_mb": round(highest.mb),
            "idle_rss_mb": round(idle),
            "lost": lost,
            "took_s": round(took, 1),
            "ideal_s": work.turns * work.latency,
            "server_cpu_ms_per_rollout": round(started.cpu_seconds * 1000 / work.rollouts, 3),
        }


def main() -> None:
    parser = Parser(__doc__)
    add_work(parser, mode="attach", rollouts=10_000, latency=5.0, without=("in_flight",))
    parser.amounts(workers=1)
    given = parser.parse_args()
    show(measured(measure(work_of(parser, given), given.workers)), given.json)


if __name__ == "__main__":
    main()
