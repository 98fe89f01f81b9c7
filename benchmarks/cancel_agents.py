"""The time from a cancel to the outcome of a rollout that is in the middle of something.

python -m benchmarks.cancel_agents [--rollouts 50] [--in-flight 16] [--json]

Each agent asks one chat. Then it blocks its thread, awaits a tool, blocks a thread in a tool, or waits for the reply to
a second request to its base URL (with the openai package installed). One rollout after the other is cancelled. The time
is from the call of cancel() until the trainer has the outcome with its partial sample.
"""

import asyncio
import importlib.util
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.flight import new_names
from benchmarks.processes import server
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.supervise import OnFailure, future, job
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, Trainer

ROLLOUT = job("benchmarks.cancel_agents", OnFailure.RAISE)
PATIENCE = 60.0
"""A rollout must ask its chats within this many seconds."""
BEGUN = 0.05
"""The seconds after a reply after which the agent is in the middle of its pause."""
KINDS = {"thread": ("thread", None), "tool": ("tool", "waits"), "sync_tool": ("tool", "blocks")}
"""The agent loop and the label of each kind."""
REQUEST = {"http_request": ("request", None)}


class Model:
    """A policy that answers the first chat of a rollout, and never the second one."""

    def __init__(self, until: int) -> None:
        self.asked: dict[str, asyncio.Event] = {}
        self._until = until

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        if request.chat_number == self._until:
            self.asked[request.rollout_id].set()
        if request.chat_number > 1:
            await asyncio.Event().wait()
        return answer(request, "hello")


async def measure(rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure the milliseconds of each cancel."""
    figures: dict[str, Any] = {"benchmark": "cancel_agents", "rollouts": rollouts, "in_flight": in_flight}
    kinds = KINDS | (REQUEST if importlib.util.find_spec("openai") else {})
    names = new_names()
    with server("attach", in_flight, ("-m", "benchmarks.sleepers:agent_loops")) as ready:
        for kind, (agent_loop, label) in kinds.items():
            progress(f"cancel_agents: {kind}")
            model = Model(2 if kind in REQUEST else 1)
            fields = {"agent_loop": agent_loop, "label": label}
            async with Trainer([ready.grpc], model) as trainer:
                times = sorted(await _cancelled(trainer, model, names, fields, rollouts, in_flight))
            figures[kind] = {"p50_ms": round(statistics.median(times) * 1000, 1), "max_ms": round(times[-1] * 1000, 1)}
    return figures


async def _cancelled(
    trainer: Trainer, model: Model, names: Iterator[str], fields: dict[str, Any], rollouts: int, in_flight: int
) -> list[float]:
    """Return the seconds from each cancel to its outcome."""
    times: list[float] = []

    def start() -> tuple[str, "asyncio.Future[RolloutOutcome]"]:
        name = next(names)
        model.asked[name] = asyncio.Event()
        question = [{"role": "user", "content": "hello"}]
        return name, future(ROLLOUT, trainer.rollout(rollout_id=name, messages=question, **fields))

    running = [start() for _ in range(min(in_flight, rollouts))]
    for number in range(rollouts):
        name, ended = running.pop(0)
        async with asyncio.timeout(PATIENCE):
            await model.asked[name].wait()
            await asyncio.sleep(BEGUN)
            began = time.perf_counter()
            await trainer.cancel(name)
            outcome = await ended
        times.append(time.perf_counter() - began)
        if outcome.status != "CANCELLED" or not outcome.samples["main"].segments:
            raise Broken(f"rollout {name} ended {outcome.status}, or without its partial sample")
        if number + in_flight < rollouts:
            running.append(start())
    return times


if __name__ == "__main__":
    run(__doc__, measure, rollouts=50, in_flight=16)
