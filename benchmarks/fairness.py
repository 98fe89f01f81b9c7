"""Two trainers at one server, with a third one that stalls and without it.

python -m benchmarks.fairness [--mode attach] [--in-flight 64] [--max-concurrent 300] [--alternations 5]
    [--seconds 4] [--json]

Every trainer is a process of its own and keeps as many rollouts in flight. The third never answers a chat. Each
phase has a fresh server; its time begins when everybody has been served once. `ratio` is the two trainers' rate with
the third one over their rate without, the median of the alternations.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.flight import Work, new_names
from benchmarks.grpc_trainers import AttachTrainer, CallbackTrainer
from benchmarks.policy import never, scripted
from benchmarks.processes import Server, ready_record, server, start, stop
from benchmarks.tap import straight
from osmosis_grpc.trainer import ChatRequest

TRAINERS: dict[str, Callable[..., AttachTrainer | CallbackTrainer]] = {
    "attach": AttachTrainer,
    "callback": CallbackTrainer,
}
OPTIONS = {"in-flight": 64, "max-concurrent": 300, "alternations": 5, "turns": 8, "tokens": 256}


async def train(work: Work, address: str, stalled: bool) -> dict[str, Any]:
    """One trainer: a record when it is served, then its count of ended rollouts for every line on stdin."""
    served, ended = asyncio.Event(), 0
    policy = scripted(work.tokens)

    def done() -> None:
        nonlocal ended
        ended += 1
        served.set()

    async def stall(request: ChatRequest) -> Any:
        served.set()
        await never(request)

    there = Server(0, address, "")
    async with TRAINERS[work.mode](work, there, straight, stall if stalled else policy) as trainer:
        running = asyncio.create_task(trainer.run(new_names(), done))
        running.add_done_callback(lambda _: served.set())
        await served.wait()
        print(json.dumps({"event": "served"}), flush=True)
        while not running.done() and bool(await asyncio.to_thread(sys.stdin.readline)):
            print(json.dumps({"ended": ended, "at": time.perf_counter()}), flush=True)
        if running.done():
            running.result()
            raise Broken("the trainer's rollouts have come to an end")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return {}


async def measure(work: Work, max_concurrent: int, alternations: int, seconds: float) -> dict[str, Any]:
    """Phases without and with the third trainer, in turn."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(alternations):
        for third in (False, True):
            rates[third].append(_phase(work, max_concurrent, seconds, third))
            progress(f"fairness: {number + 1} of {alternations}, third {third}: {rates[third][-1]:.1f} rollouts/s")
    ratios = [with_third / without for without, with_third in zip(rates[False], rates[True], strict=True)]
    return {
        "benchmark": "fairness",
        "mode": work.mode,
        "turns": work.turns,
        "tokens": work.tokens,
        "in_flight": work.in_flight,
        "max_concurrent": max_concurrent,
        "alternations": alternations,
        "seconds": seconds,
        "rollouts_per_s_without": round(statistics.median(rates[False]), 1),
        "rollouts_per_s_with_stalled": round(statistics.median(rates[True]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def _phase(work: Work, max_concurrent: int, seconds: float, third: bool) -> float:
    """The two trainers' rate together."""
    with ExitStack() as stack:
        started = stack.enter_context(server(work.mode, max_concurrent))
        busy = [_trainer(stack, work, started.grpc, False) for _ in range(2)]
        stalled = [_trainer(stack, work, started.grpc, True)] if third else []
        for process in (*busy, *stalled):
            ready_record(process)
        time.sleep(0.5)
        first = [_count(process) for process in busy]
        time.sleep(seconds)
        last = [_count(process) for process in busy]
        for process in stalled:
            _count(process)  # it is still there
    return sum(
        (after["ended"] - before["ended"]) / (after["at"] - before["at"])
        for before, after in zip(first, last, strict=True)
    )


def _trainer(stack: ExitStack, work: Work, address: str, stalled: bool) -> "subprocess.Popen[str]":
    arguments = [
        "-m",
        "benchmarks.fairness",
        "--trainer",
        address,
        "--mode",
        work.mode,
        "--in-flight",
        str(work.in_flight),
        "--turns",
        str(work.turns),
        "--tokens",
        str(work.tokens),
        *(["--stalled"] if stalled else []),
    ]
    process = start(arguments, core=1)
    stack.callback(stop, process)
    return process


def _count(process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    counted: dict[str, Any] = ready_record(process)
    return counted


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--mode", choices=tuple(TRAINERS), default="attach")
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"[{default}]")
    parser.add_argument("--seconds", type=float, default=4.0, help="[4]")
    parser.add_argument("--trainer", metavar="HOST:PORT", help="be one of the trainers")
    parser.add_argument("--stalled", action="store_true", help="be the one that stalls")
    given = parser.parse_args()
    work = Work(mode=given.mode, turns=given.turns, tokens=given.tokens, in_flight=given.in_flight)
    if given.trainer:
        measured(train(work, given.trainer, given.stalled))
    else:
        show(measured(measure(work, given.max_concurrent, given.alternations, given.seconds)), given.json)


if __name__ == "__main__":
    main()
