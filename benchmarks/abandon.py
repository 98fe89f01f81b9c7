"""The time from a cancel to the stop of the sampling, seen from the trainer's policy.

python -m benchmarks.abandon [--rollouts 100] [--in-flight 64] [--json]

Each chat is sampled for 60 s. When `in_flight` chats are being sampled, one rollout after the other is cancelled. The
time is from the call of cancel() until the policy's task is cancelled. It has the journal's commit of the cancel in it.
"""

import asyncio
import statistics
import time
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.flight import new_names
from benchmarks.processes import server
from osmosis_grpc.supervise import OnFailure, future, job
from osmosis_grpc.trainer import ChatRequest, ChatResponse, Trainer, TransportName

ROLLOUT = job("benchmarks.rollout", OnFailure.RAISE)
SAMPLING = 60.0
"""Each chat is sampled for this many seconds."""
TRANSPORTS: tuple[TransportName, ...] = ("attach", "callback")


class Slow:
    """A policy that samples for a minute, and records when its call is cancelled."""

    def __init__(self) -> None:
        self.began: dict[str, asyncio.Event] = {}
        self.stopped: dict[str, asyncio.Future[float]] = {}

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        name = request.rollout_id
        self.began[name].set()
        try:
            await asyncio.sleep(SAMPLING)
        except asyncio.CancelledError:
            if not self.stopped[name].done():
                self.stopped[name].set_result(time.perf_counter())
            raise
        raise Broken(f"the sampling of rollout {name} was not stopped")

    def expect(self, name: str) -> None:
        """Prepare for a rollout."""
        self.began[name] = asyncio.Event()
        self.stopped[name] = asyncio.get_running_loop().create_future()


async def measure(rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure the milliseconds of each cancel over both transports."""
    figures: dict[str, Any] = {"benchmark": "abandon", "rollouts": rollouts, "in_flight": in_flight}
    for transport in TRANSPORTS:
        progress(f"abandon: {transport}")
        times = sorted(await _cancelled(transport, rollouts, in_flight))
        figures[transport] = {
            "p50_ms": round(statistics.median(times) * 1000, 1),
            "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 1),
            "max_ms": round(times[-1] * 1000, 1),
        }
    return figures


async def _cancelled(transport: TransportName, rollouts: int, in_flight: int) -> list[float]:
    """Return the seconds from each cancel to the stop of its sampling."""
    policy, names, times = Slow(), new_names(), []
    with server("attach", in_flight) as ready:
        async with Trainer([ready.grpc], policy, transport=transport) as trainer:

            def start() -> tuple[str, "asyncio.Future[Any]"]:
                name = next(names)
                policy.expect(name)
                question = [{"role": "user", "content": "hello"}]
                work = trainer.rollout(rollout_id=name, messages=question, max_turns=1)
                return name, future(ROLLOUT, work)

            running = [start() for _ in range(in_flight)]
            for _ in range(rollouts):
                name, ended = running.pop(0)
                async with asyncio.timeout(SAMPLING / 2):
                    await policy.began[name].wait()
                    began = time.perf_counter()
                    await trainer.cancel(name)
                    times.append(await policy.stopped[name] - began)
                    await ended
                running.append(start())
            await asyncio.gather(*(policy.began[name].wait() for name, _ in running))
            await trainer.cancel(everything=True)
            await asyncio.gather(*(ended for _, ended in running))
    return times


if __name__ == "__main__":
    run(__doc__, measure, rollouts=100, in_flight=64)
