"""The time that is added to a chat, seen from the trainer's policy.

python -m benchmarks.added_time [--mode MODE] [--rollouts 1024] [--turns 8] [--tokens 256] [--json]

It is the time between the policy's reply and its next call for the same rollout, with the work of the trainer library.
Tools take no time. Two runs: one rollout in flight and a trainer that answers at once, for the median; 256 rollouts in
flight and a trainer that answers after 100 ms, for the 99th percentile. The first rollouts are left out.
"""

import inspect
import itertools
import statistics
import time
from dataclasses import asdict, replace
from typing import Any

from benchmarks.figures import progress
from benchmarks.flight import Work, new_names, run_work
from benchmarks.measure import TRAINERS, Watch, finish
from benchmarks.policy import Policy, scripted
from benchmarks.processes import server
from benchmarks.tap import straight
from osmosis_grpc.trainer import ChatRequest, ChatResponse

MANY, LATENCY = 256, 0.1


class Gaps:
    """Wraps a policy and records the time between its calls."""

    def __init__(self, policy: Policy) -> None:
        self.seconds: list[float] = []
        self._policy = policy
        self._answered: dict[str, float] = {}

    async def __call__(self, request: ChatRequest) -> ChatResponse:
        called = time.perf_counter()
        answered = self._answered.pop(request.rollout_id, None)
        if answered is not None:
            self.seconds.append(called - answered)
        answer = self._policy(request)
        response: ChatResponse = await answer if inspect.isawaitable(answer) else answer
        self._answered[request.rollout_id] = time.perf_counter()
        return response

    def milliseconds(self) -> dict[str, Any]:
        """Return the percentiles of the recorded times."""
        hundredths = statistics.quantiles(self.seconds, n=100)
        return {
            "p50_ms": round(hundredths[49] * 1000, 3),
            "p99_ms": round(hundredths[98] * 1000, 3),
            "chats": len(self.seconds),
        }


async def measure(work: Work) -> dict[str, Any]:
    """Measure both runs on one server."""
    figures: dict[str, Any] = {"benchmark": "added_time", **asdict(work)} | {"in_flight": [1, MANY], "lost": 0}
    few = replace(work, in_flight=1, latency=0.0, rollouts=max(work.rollouts // 4, 8))
    many = replace(work, in_flight=MANY, latency=LATENCY, rollouts=max(work.rollouts, 2 * MANY))
    with server(work.mode, MANY) as started:
        for name, run in (("one_in_flight", few), (f"{MANY}_in_flight", many)):
            progress(f"added_time: {work.mode}, {name}")
            gaps = Gaps(scripted(run.tokens, run.latency))
            names = new_names()
            async with TRAINERS[work.mode](run, started, straight, gaps) as trainer:
                for count in (max(run.in_flight, 16), run.rollouts):
                    gaps.seconds.clear()
                    watch = Watch(started, ())
                    figures["lost"] += await finish(
                        trainer, list(itertools.islice(names, count)), watch, run.stalled_after
                    )
            figures[name] = gaps.milliseconds() | {"rollouts": run.rollouts, "latency": run.latency}
    return figures


if __name__ == "__main__":
    run_work(__doc__, measure, mode="attach", rollouts=1024, without=("in_flight", "latency"))
