"""Rollouts of a sync agent against those of an async one, and the heartbeats of an attachment meanwhile.

python -m benchmarks.sync_agents [--rollouts 200] [--turns 8] [--rounds 3] [--seconds 50] [--json]

Both agents pause for 100 ms after each reply. All rollouts run at once, and the rounds alternate. Then the sync agent
runs again for `seconds`, while a second attachment is idle; the figure is the largest gap between its heartbeats. The
server sends one after 15 s without a frame.
"""

import asyncio
import statistics
import time
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.flight import new_names
from benchmarks.processes import server
from benchmarks.sleepers import PAUSE
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.stream.stream_machine import SILENCE
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.raw import RawTrainer, trainer_frames
from osmosis_grpc.trainer import Trainer

LISTEN = job("benchmarks.listen", OnFailure.RAISE)
KINDS = ("async", "sync")


async def measure(rollouts: int, turns: int, rounds: int, seconds: int) -> dict[str, Any]:
    """Measure the seconds until all rollouts of a kind have ended, and the largest gap between heartbeats."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    names = new_names()
    with server("attach", rollouts, ("-m", "benchmarks.sleepers:agent_loops")) as ready:
        async with Trainer([ready.grpc], EchoPolicy()) as trainer:

            async def all_of(kind: str) -> float:
                began = time.perf_counter()
                question = [{"role": "user", "content": "hello"}]
                work = [
                    trainer.rollout(
                        rollout_id=next(names), messages=question, max_turns=turns, agent_loop=f"{kind} turns"
                    )
                    for _ in range(rollouts)
                ]
                outcomes = await asyncio.gather(*work)
                if any(outcome.status is not OutcomeStatus.COMPLETED for outcome in outcomes):
                    raise Broken("a rollout did not complete")
                return time.perf_counter() - began

            for number in range(rounds):
                for kind in KINDS:
                    progress(f"sync_agents: {kind}, round {number + 1}")
                    times[kind].append(await all_of(kind))
            progress(f"sync_agents: heartbeats for {seconds} s")
            listening = child(LISTEN, _gaps(ready.grpc, seconds))
            while not listening.done():
                await all_of("sync")
            gaps = await listening
    medians = {kind: statistics.median(of_kind) for kind, of_kind in times.items()}
    return {
        "benchmark": "sync_agents",
        "rollouts": rollouts,
        "turns": turns,
        "ideal_s": round(turns * PAUSE, 2),
        **{f"{kind}_s": [round(each, 2) for each in of_kind] for kind, of_kind in times.items()},
        "sync_over_async": round(medians["sync"] / medians["async"], 2),
        "heartbeats": len(gaps),
        "largest_gap_s": round(max(gaps, default=0.0), 2),
    }


async def _gaps(address: str, seconds: float) -> list[float]:
    """Return the seconds between the heartbeats of an idle attachment."""
    gaps: list[float] = []
    async with RawTrainer(address) as trainer:
        stream = await trainer.attach()
        stream.timeout = SILENCE
        end = last = time.perf_counter()
        end += seconds
        while time.perf_counter() < end:
            await stream.next("heartbeat")
            await stream.send(trainer_frames.HEARTBEAT)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
    return gaps


if __name__ == "__main__":
    run(__doc__, measure, rollouts=200, turns=8, rounds=3, seconds=50)
