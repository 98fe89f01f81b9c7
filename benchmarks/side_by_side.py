"""Measures how much of their rate some trainers keep while others burden the same server.

The trainers are processes. Each prints a line once it is served, and its count of ended rollouts for every line on
stdin. Phases without and with the burden alternate, each with a fresh server.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from benchmarks.figures import Broken, progress
from benchmarks.flight import Done, Work
from benchmarks.processes import ready_record, start, stop


async def report_counts(run: Callable[[Done], Awaitable[Any]]) -> dict[str, Any]:
    """Run rollouts without end with `run(done)`, and report how many have ended. Raises Broken when they end."""
    served, ended = asyncio.Event(), 0

    def done() -> None:
        nonlocal ended
        ended += 1
        served.set()

    running = asyncio.ensure_future(run(done))
    running.add_done_callback(lambda _: served.set())
    await served.wait()
    report(event="served")
    while not running.done() and await asyncio.to_thread(asked):
        report(ended=ended, at=time.perf_counter())
    if running.done():
        running.result()
        raise Broken("the rollouts have come to an end")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return {}


def asked() -> bool:
    """Wait for a line on stdin. Returns False at its end."""
    return bool(sys.stdin.readline())


def report(**record: Any) -> None:
    """Print one line for the process that measures."""
    print(json.dumps(record), flush=True)


def count(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Ask a process for its count."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return ready_record(process)


def spawn(
    stack: ExitStack, module: str, work: Work, *options: str, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start one of the trainers, which ends with the stack."""
    sizes = {"--in-flight": work.in_flight, "--turns": work.turns, "--tokens": work.tokens}
    numbers = [text for option, value in sizes.items() for text in (option, str(value))]
    process = start(["-m", module, *numbers, *options], core=1, environment=environment)
    stack.callback(stop, process)
    return process


def rate(processes: Sequence["subprocess.Popen[str]"], seconds: float) -> float:
    """Rollouts a second of all processes together, over so many seconds."""
    for process in processes:
        ready_record(process)
    time.sleep(0.5)
    first = [count(process) for process in processes]
    time.sleep(seconds)
    last = [count(process) for process in processes]
    rates = [(b["ended"] - a["ended"]) / (b["at"] - a["at"]) for a, b in zip(first, last, strict=True)]
    return float(sum(rates))


def alternate(burden: str, alternations: int, phase: Callable[[bool], float]) -> dict[str, Any]:
    """Return the figures of `phase(False)` and `phase(True)` in turn. `burden` names what the second one adds."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(alternations):
        for burdened in (False, True):
            rates[burdened].append(phase(burdened))
            progress(f"{number + 1} of {alternations}, {burden} {burdened}: {rates[burdened][-1]:.1f} rollouts/s")
    ratios = [with_it / without for without, with_it in zip(rates[False], rates[True], strict=True)]
    return {
        "alternations": alternations,
        "rollouts_per_s_without": round(statistics.median(rates[False]), 1),
        f"rollouts_per_s_with_{burden}": round(statistics.median(rates[True]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "worst": round(min(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
