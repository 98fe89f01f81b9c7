"""The lag of the event loop while tools work in a sandbox.

python -m benchmarks.tool_lag [--seconds 5] [--megabytes 1000] [--json]

A timer fires every millisecond; the lag is the time by which it is late. Other processes of a busy machine delay it,
too. They do not change `_cpu_ms`: the most CPU time of the event loop's thread between two ticks. The tools run one
after the other: a command that sleeps for `seconds`, a search for a pattern that never ends, with a limit of
`seconds`, and a command that prints `megabytes`. Then a folder with 200 files of 10 kB is saved as a snapshot and
restored. The first figure is the lag without a tool.
"""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, progress, run
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.tools import bash_tool, search_tool
from osmosis_grpc.tools.sandbox import LocalSandbox

TICK = job("benchmarks.tick", OnFailure.RAISE)
EVERY = 0.001
"""Seconds between two ticks."""
FILES = 200
"""The files of the folder that is saved."""


async def measure(seconds: int, megabytes: int) -> dict[str, Any]:
    """Measure the largest lag during each tool, in milliseconds."""
    lags: dict[str, Lag] = {}
    async with LocalSandbox() as box:
        bash, search = bash_tool(box, timeout=600), search_tool(box, timeout=seconds)
        await box.write_file("long", b"a" * 100)
        pattern = {"command": "search_text", "pattern": "^(a+)+$b", "regex": True}
        print_much = f"yes | head -c {megabytes}000000"
        lags["idle"], _ = await lag_during(asyncio.sleep(seconds))
        lags["sleep"], slept = await lag_during(bash.run({"command": f"sleep {seconds}"}))
        lags["search"], found = await lag_during(search.run(pattern))
        lags["print"], printed = await lag_during(bash.run({"command": print_much}))
        isolation = box.isolation.method
        for number in range(FILES):
            await box.write_file(
                f"folder-{number % 20}/{number}", random.Random(number).randbytes(5_000).hex().encode()
            )
        began = time.perf_counter()
        lags["snapshot"], _ = await lag_during(_save_and_restore(box))
        snapshot_seconds = time.perf_counter() - began
    if slept["return_code"] or found is not None or not printed["stdout_truncated"] or printed["return_code"]:
        raise Broken("a tool did not end as expected")
    shown = {f"{name}_lag_ms": round(lag.seconds * 1000, 1) for name, lag in lags.items()}
    shown |= {f"{name}_cpu_ms": round(lag.cpu * 1000, 1) for name, lag in lags.items()}
    return {"isolation": isolation, **shown, "snapshot_ms": round(snapshot_seconds * 1000, 1)}


async def _save_and_restore(box: LocalSandbox) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await box.save(Path(folder) / "snapshot")
        await box.restore(Path(folder) / "snapshot")


@dataclass(slots=True)
class Lag:
    """The largest lag of the event loop, in seconds."""

    seconds: float = 0.0
    cpu: float = 0.0
    """The most CPU time of its thread between two ticks, in seconds."""


async def lag_during(work: Awaitable[Any]) -> tuple[Lag, Any]:
    """Return the largest lag during some work, and its result; None if a tool has refused its arguments."""
    progress("tool_lag: the next tool runs")
    largest = Lag()

    async def tick() -> None:
        while True:
            due, cpu = time.perf_counter() + EVERY, time.thread_time()
            await asyncio.sleep(EVERY)
            largest.seconds = max(largest.seconds, time.perf_counter() - due)
            largest.cpu = max(largest.cpu, time.thread_time() - cpu)

    ticking = child(TICK, tick())
    result = None
    try:
        with contextlib.suppress(ToolArgumentError):
            result = await work
    finally:
        ticking.cancel()
    return largest, result


if __name__ == "__main__":
    run(__doc__, measure, seconds=5, megabytes=1000)
