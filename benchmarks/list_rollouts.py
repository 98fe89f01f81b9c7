"""Lists of a journal with many rollouts: the time of the command and of the RPC.

python -m benchmarks.list_rollouts [--rollouts 100000] [--state-dir DIR] [--starts N] [--calls N] [--json]

The journal is that of benchmarks.full_journal. With --state-dir it is used again if it exists. A server uses it all the
time. Each list has a filter and at most 100 rows. `command_s` is the median time of `osmosis-grpc list` on the folder
and on the server, for the slowest filter; `rpc_ms` is that of ListRollouts.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.full_journal import fill
from benchmarks.processes import CORES, ROOT, Server, environment_with, server
from osmosis_grpc.protocol.types import RolloutFilter, RolloutState
from osmosis_grpc.trainer import RolloutClient

ROWS = 100
FILTERS = {
    "failed": (RolloutFilter(states=[RolloutState.FAILED]), ["--state", "failed"]),
    "rare reason": (RolloutFilter(failure_reasons=["CHAT_REFUSED"]), ["--reason", "CHAT_REFUSED"]),
    "best rewards": (RolloutFilter(min_reward=0.999), ["--min-reward", "0.999"]),
    "one group": (RolloutFilter(group_id="group-00003"), ["--group", "group-00003"]),
    "no match": (RolloutFilter(agent_loop="none"), ["--agent", "none"]),
    "stalled": (RolloutFilter(stalled=5.0), ["--stalled", "5s"]),
}


async def measure(folder: Path, *, rollouts: int, starts: int, calls: int) -> dict[str, Any]:
    """Return all figures."""
    if not (folder / "journal.db").exists():
        progress(f"writing {rollouts} rollouts to {folder}")
        await fill(folder, rollouts, 2, 64)
    began = time.perf_counter()
    with server("attach", 64, ["--state-dir", str(folder)]) as started:
        ready = time.perf_counter() - began
        figures: dict[str, Any] = {"benchmark": "list_rollouts", "rollouts": rollouts, "ready_s": round(ready, 2)}
        async with RolloutClient(started.grpc) as client:
            figures |= await _times(client, folder, started, starts, calls)
    return figures


async def _times(client: RolloutClient, folder: Path, started: Server, starts: int, calls: int) -> dict[str, Any]:
    """Return the times of the command and of the RPC, by filter."""
    rpc, commands = {}, {}
    for name, (where, options) in FILTERS.items():
        progress(f"lists: {name}")
        rpc[name] = [await _timed(partial(_page, client, where)) for _ in range(calls + 1)][1:]
        for source, given in (("folder", ["--from", str(folder)]), ("server", ["--from", started.grpc])):
            line = _line(given, options)
            commands[f"{name}, {source}"] = [
                await _timed(partial(asyncio.to_thread, _run, line)) for _ in range(starts + 1)
            ][1:]
    return {
        "command_s": round(max(map(statistics.median, commands.values())), 3),
        "rpc_ms": round(max(map(statistics.median, rpc.values())) * 1000, 1),
        "all_command_s": {name: round(statistics.median(found), 3) for name, found in commands.items()},
        "all_rpc_ms": {name: round(statistics.median(found) * 1000, 1) for name, found in rpc.items()},
        "worst_rpc_ms": round(max(map(max, rpc.values())) * 1000, 1),
    }


async def _page(client: RolloutClient, where: RolloutFilter) -> None:
    await client.page(where, limit=ROWS, newest_first=True)


def _line(source: list[str], options: list[str]) -> list[str]:
    return [sys.executable, "-m", "osmosis_grpc", "list", *source, *options, "--limit", str(ROWS)]


def _run(line: list[str]) -> None:
    """Run a command on any core."""
    pinned = ["taskset", "-c", ",".join(map(str, CORES)), *line]
    done = subprocess.run(pinned, cwd=ROOT, env=environment_with({}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"{' '.join(line)} ended with {done.returncode}: {done.stderr}")


async def _timed(call: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep the journal here")
    parser.amounts(rollouts=100_000, starts=5, calls=50)
    given = vars(parser.parse_args())
    as_json, state_dir = given.pop("json"), given.pop("state_dir")
    with ExitStack() as stack:
        folder = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = measured(measure(folder.resolve(), **given))
    show(figures, as_json)


if __name__ == "__main__":
    main()
