"""Rollouts of agents that compute: `serve --workers 2` against one process.

python -m benchmarks.workers [--rollouts 320] [--turns 4] [--cpu-ms 5] [--latency 0.1] [--alternations 3] [--json]

The agent uses `cpu_ms` of processor time after each reply, so one process serves at most 1000 / cpu_ms turns a second.
The trainer waits `latency` seconds before each reply. All rollouts run at once. Server and trainer share all cores, in
both modes. The trainer attaches to the port of each worker. On a busy machine the rates say little, and the
processor time of the servers for each rollout says more.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.flight import new_names
from benchmarks.processes import Server, environment_with, ready_record
from benchmarks.script import begin
from osmosis_grpc.agent import RolloutAgentLoop, RolloutContext, RolloutResult
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, OutcomeStatus
from osmosis_grpc.trainer import Trainer

MODES = {"one process": 1, "two workers": 2}


class Busy(RolloutAgentLoop):
    """Computes for `cpu_ms` of processor time after each of `max_turns` replies."""

    name = "busy"

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        seconds = float(ctx.request.metadata["cpu_ms"]) / 1000
        for _ in range(ctx.request.max_turns):
            messages.append((await ctx.chat(messages)).message)
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                sum(range(500))
            messages.append({"role": "user", "content": "go on"})
        return ctx.complete(messages, reward=1.0)


agent_loop = Busy()


@contextmanager
def serving(workers: int, rollouts: int) -> Iterator[list[Server]]:
    """Start the server, and yield each of its processes that serve."""
    command = (
        *(sys.executable, "-m", "osmosis_grpc.serve", "-m", "benchmarks.workers:agent_loop", "--workers", str(workers)),
        *("--grpc-port", "0", "--no-http", "--no-validate", "--log-level", "error", "--drain-timeout", "0", "--json"),
        *("--max-concurrent", str(rollouts)),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment_with({})) as process,
    ):
        try:
            ready: Any = ready_record(process)
            rows = ready.get("workers") or [{"pid": ready["pid"], "port": ready["grpc"].rpartition(":")[2]}]
            yield [Server(row["pid"], f"127.0.0.1:{row['port']}", "") for row in rows]
        finally:
            process.terminate()
            process.wait(60)


async def measure(rollouts: int, turns: int, cpu_ms: float, latency: float, alternations: int) -> dict[str, Any]:
    """Measure the rollouts/s of both modes in turn. The ratio is the median of those of the alternations."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    names = new_names()

    async def policy(request: ChatRequest, /) -> ChatResponse:
        await asyncio.sleep(latency)
        return answer(request, "fine")

    async def all_of(trainer: Trainer, count: int) -> float:
        began = time.perf_counter()
        work = [
            trainer.rollout(rollout_id=next(names), messages=begin(), max_turns=turns, metadata={"cpu_ms": cpu_ms})
            for _ in range(count)
        ]
        outcomes = await asyncio.gather(*work)
        if any(outcome.status is not OutcomeStatus.COMPLETED for outcome in outcomes):
            raise Broken("a rollout did not complete")
        return count / (time.perf_counter() - began)

    for number in range(alternations):
        for mode, workers in MODES.items():
            progress(f"workers: {mode}, alternation {number + 1}")
            with serving(workers, rollouts) as servers:
                async with Trainer([server.grpc for server in servers], policy) as trainer:
                    await all_of(trainer, max(1, rollouts // 10))
                    before = sum(server.cpu_seconds for server in servers)
                    rates[mode].append(await all_of(trainer, rollouts))
                    used = sum(server.cpu_seconds for server in servers) - before
                    cpu[mode].append(round(used * 1000 / rollouts, 1))
    ratios = [two / one for one, two in zip(rates["one process"], rates["two workers"], strict=True)]
    return {
        "benchmark": "workers",
        "rollouts": rollouts,
        "turns": turns,
        "cpu_ms": cpu_ms,
        "latency_s": latency,
        "cores": len(os.sched_getaffinity(0)),
        "rollouts_per_s": {mode: [round(rate, 1) for rate in found] for mode, found in rates.items()},
        "server_cpu_ms_per_rollout": cpu,
        "load": [round(each, 1) for each in os.getloadavg()],
        "ratios": [round(ratio, 2) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 2),
    }


if __name__ == "__main__":
    run(__doc__, measure, rollouts=320, turns=4, cpu_ms=5.0, latency=0.1, alternations=3)
