"""A legacy trainer and our HTTP server: many rollouts in flight, and the time of a chat through it.

python -m benchmarks.gateway [--rollouts 1000] [--turns 2] [--latency 2.0] [--json]

Server and trainer run in processes of their own, pinned to one core each where there are two.
`ideal_s` is turns x latency: what the rollouts would take if nothing but the trainer took time.
`chat_ms` is measured with one rollout at a time and a trainer that answers at once: from the
answer to one chat to the arrival of the next, tool time (none) left out.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.machine import cpu_seconds, machine
from osmosis_grpc.rollout import RolloutAgentLoop, RolloutContext, RolloutRequest, RolloutResult


class Turns(RolloutAgentLoop):
    """Asks as often as it may, and says a word in between."""

    name = "turns"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        messages = list(ctx.request.messages)
        for _ in range(ctx.request.max_turns):
            result = await ctx.chat(messages)
            messages += [result.message, {"role": "user", "content": "go on"}]
        return ctx.complete(messages, reward=1.0)


agent_loop = Turns()


class Trainer:
    """A raw HTTP trainer: one reply of 200 characters, again and again."""

    REPLY = json.dumps(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 200}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60},
        }
    ).encode()

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.in_flight = self.most_in_flight = self.done = 0
        self.answered: float | None = None
        self.gaps: list[float] = []
        self.finished = asyncio.Event()
        self.wanted = 0

    async def __aenter__(self) -> "Trainer":
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/rollout/completed", self.completed)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._runner.cleanup()

    async def chat(self, request: web.Request) -> web.Response:
        if self.answered is not None:
            self.gaps.append(time.perf_counter() - self.answered)
        await request.read()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.latency:
            await asyncio.sleep(self.latency)
        self.in_flight -= 1
        self.answered = time.perf_counter()
        return web.Response(body=self.REPLY, content_type="application/json")

    async def completed(self, request: web.Request) -> web.Response:
        await request.read()
        self.done += 1
        self.answered = None
        if self.done >= self.wanted:
            self.finished.set()
        return web.Response()

    async def run(self, session: aiohttp.ClientSession, ids: list[str], turns: int) -> float:
        """Start rollouts and wait for their results: the seconds it took."""
        self.wanted = self.done + len(ids)
        self.finished.clear()
        began = time.perf_counter()
        await asyncio.gather(*(self._init(session, rollout_id, turns) for rollout_id in ids))
        await self.finished.wait()
        return time.perf_counter() - began

    async def _init(self, session: aiohttp.ClientSession, rollout_id: str, turns: int) -> None:
        body = {
            "rollout_id": rollout_id,
            "server_url": self.url,
            "messages": [{"role": "user", "content": "begin"}],
            "completion_params": {},
            "max_turns": turns,
        }
        async with session.post("/v1/rollout/init", json=body) as answer:
            assert answer.status == 202, await answer.text()


async def measure(rollouts: int, turns: int, latency: float) -> dict[str, Any]:
    """Both figures, from one server."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    command = [
        sys.executable,
        "-m",
        "osmosis_grpc.serve",
        "-m",
        "benchmarks.gateway:agent_loop",
        "--grpc-port",
        "0",
        "-p",
        "0",
        "--max-concurrent",
        str(rollouts),
        "--no-validate",
        "--log-level",
        "error",
        "--json",
    ]
    environment = os.environ | {
        "OSMOSIS_ROLLOUT_CLIENT_MAX_CONNECTIONS": str(rollouts),
        "OSMOSIS_ROLLOUT_CLIENT_MAX_KEEPALIVE_CONNECTIONS": str(rollouts),
    }
    cores = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        if len(cores) > 1:
            os.sched_setaffinity(process.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:2])
        connector = aiohttp.TCPConnector(limit=200)
        async with aiohttp.ClientSession(f"http://{ready['http']}", connector=connector) as session:
            async with Trainer(0.0) as quick:
                await quick.run(session, ["warm-up"], 50)
                quick.gaps.clear()
                await quick.run(session, ["one"], 500)
            async with Trainer(latency) as slow:
                before, own = cpu_seconds(process.pid), time.process_time()
                took = await slow.run(session, [f"r{i}" for i in range(rollouts)], turns)
                server_cpu, trainer_cpu = cpu_seconds(process.pid) - before, time.process_time() - own
    finally:
        process.terminate()
        process.wait(20)
    ideal = turns * latency
    milliseconds = sorted(gap * 1000 for gap in quick.gaps)
    return {
        "benchmark": "gateway",
        "rollouts": rollouts,
        "turns": turns,
        "latency_s": latency,
        "took_s": round(took, 3),
        "ideal_s": ideal,
        "times_ideal": round(took / ideal, 3),
        "most_in_flight": slow.most_in_flight,
        "server_cpu_ms_per_rollout": round(server_cpu * 1000 / rollouts, 3),
        "trainer_cpu_ms_per_rollout": round(trainer_cpu * 1000 / rollouts, 3),
        "lost": rollouts - slow.done,
        "chat_ms_p50": round(statistics.median(milliseconds), 3),
        "chat_ms_p99": round(milliseconds[int(len(milliseconds) * 0.99)], 3),
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--latency", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.rollouts, given.turns, given.latency))
    if given.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:16} {figure}")


if __name__ == "__main__":
    main()
