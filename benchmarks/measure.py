"""Measures one run of a mode: its rate and its processor time. A separate pass measures its bytes."""

import asyncio
import cProfile
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, progress
from benchmarks.flight import Work, new_names
from benchmarks.grpc_trainers import GrpcTrainer
from benchmarks.http_trainer import HttpTrainer
from benchmarks.processes import Server, server
from benchmarks.tap import Tap, straight

Trainer = GrpcTrainer | HttpTrainer

TRAINERS: dict[str, Callable[..., Trainer]] = {
    **dict.fromkeys(("attach", "callback"), GrpcTrainer),
    **dict.fromkeys(("http", "sdk", "tuned"), HttpTrainer),
}

LEAST_WARM_UP = 32
MOST_TAPPED = 64
"""The bytes of this many rollouts are counted, or of `in_flight` rollouts if that is more."""


@dataclass(slots=True)
class Watch:
    """Counts the rollouts that have ended, and reads the clocks at some counts."""

    server: Server
    at: Sequence[int]
    done: int = 0
    readings: list[tuple[float, float, float]] = field(default_factory=list)
    """Each reading: the clock, the server's processor time, this process's processor time, in seconds."""

    def __call__(self) -> None:
        self.done += 1
        if self.done in self.at:
            self.readings.append((time.perf_counter(), self.server.cpu_seconds, time.process_time()))

    @property
    def differences(self) -> tuple[float, float, float]:
        """The differences of the last two readings."""
        first, last = self.readings[-2:]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]


async def finish(trainer: Trainer, names: Sequence[str], watch: Watch, stalled_after: float) -> int:
    """Run rollouts to their end. Return the number of lost rollouts.

    When no rollout ends for `stalled_after` seconds, all open rollouts are lost.
    """
    wanted = watch.done + len(names)
    task = asyncio.create_task(trainer.run(names, watch))
    while not task.done():
        before = watch.done
        await asyncio.wait({task}, timeout=stalled_after)
        if not task.done() and watch.done == before:
            progress(f"no rollout has ended for {stalled_after:g} s: {wanted - before} are lost")
            task.cancel()
            await asyncio.wait({task})
            return wanted - before
    task.result()
    return wanted - watch.done


async def measure(
    work: Work,
    *,
    serve: Sequence[str] = (),
    bytes_too: bool = True,
    profile: Path | None = None,
    profile_trainer: Path | None = None,
) -> dict[str, Any]:
    """Return all figures of a mode. Untimed rollouts before and after the timed ones keep `in_flight` constant."""
    with server(work.mode, work.in_flight, serve, profile) as started:
        async with TRAINERS[work.mode](work, started, straight) as trainer:
            warm = max(work.in_flight, LEAST_WARM_UP)
            names = list(itertools.islice(new_names(), warm + work.rollouts + work.in_flight))
            watch = Watch(started, (warm, warm + work.rollouts))
            with cProfile.Profile() if profile_trainer else nullcontext() as profiler:
                lost = await finish(trainer, names, watch, work.stalled_after)
            if profile_trainer and profiler:
                profiler.dump_stats(profile_trainer)
            if isinstance(trainer, HttpTrainer) and not lost:
                await trainer.check(names[-1])
        rss = started.peak_rss_mb
        wire = await wire_bytes(work, started) if bytes_too and not lost else None
    figures: dict[str, Any] = {"benchmark": "rollouts", **asdict(work), "serve": list(serve), "lost": lost}
    if len(watch.readings) == 2:
        seconds, server_cpu, trainer_cpu = watch.differences
        figures |= {
            "rollouts_per_s": round(work.rollouts / seconds, 1),
            "turns_per_s": round(work.rollouts * work.turns / seconds, 1),
            "server_cpu_ms_per_rollout": round(server_cpu * 1000 / work.rollouts, 3),
            "trainer_cpu_ms_per_rollout": round(trainer_cpu * 1000 / work.rollouts, 3),
        }
    return figures | {"wire_bytes_per_rollout": wire, "server_rss_mb": round(rss, 1)}


async def wire_bytes(work: Work, started: Server) -> int:
    """Return the bytes per rollout in both directions, without the bytes of opening connections."""
    names = new_names()
    counted = min(work.rollouts, max(MOST_TAPPED, work.in_flight))
    async with Tap() as tap, TRAINERS[work.mode](work, started, tap.route) as trainer:
        passed = []
        for count in (min(work.in_flight, counted), counted):  # the first pass opens connections
            watch = Watch(started, ())
            lost = await finish(trainer, list(itertools.islice(names, count)), watch, work.stalled_after)
            if lost:
                raise Broken(f"{lost} rollouts were lost while their bytes were counted")
            passed.append(await tap.settled())
    return round((passed[1] - passed[0]) / counted)
