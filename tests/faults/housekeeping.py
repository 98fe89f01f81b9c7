"""Runs short rollouts at full speed with a small disk budget: do the journal's files stay small, and shrink?

python -m tests.faults.housekeeping [--rollouts 20000] [--ttl 5] [--budget 20] [--quiet 60] [--in-flight 64] [--json]

The server is a process of its own, with a journal. Each rollout has two chats. The files are the database, its WAL and
its shared memory, measured every 20 ms; the run is broken when they exceed twice the budget, when they still take
more than 2 MB after nothing has come for `--quiet` seconds, or when the server refused a rollout.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.policy import scripted
from benchmarks.processes import ready_record, running, take_core
from benchmarks.work import Turns
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.faults.soak import request

TOKENS = 256
MB = 1_000_000
QUIET_MB = 2.0
"""The most megabytes of the files after the quiet time."""


def on_disk(folder: Path) -> int:
    """Bytes of the journal's files."""
    total = 0
    for path in folder.glob("journal.db*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


async def serve(given: Namespace) -> dict[str, Any]:
    """The server, in its own process, until SIGTERM."""
    config = ServerConfig(disk_budget=int(given.budget * MB), record_ttl=given.ttl, max_concurrent=2 * given.in_flight)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = AgentServer([Turns()], port=0, config=config, state_dir=Path(given.serve))
    async with server:
        print(json.dumps({"grpc": server.address}), flush=True)
        await stopped.wait()
    return {}


async def measure(given: Namespace, folder: Path, address: str) -> dict[str, Any]:
    """Run the rollouts and watch the files. Raises Broken."""
    most = done = failed = 0

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, on_disk(folder))
            await asyncio.sleep(0.02)  # between two measurements

    looking = asyncio.create_task(look())
    began = time.monotonic()
    async with Trainer([address], scripted(TOKENS), config=TrainerConfig(ttl=given.ttl)) as trainer:
        requests = (request(f"h{number}") for number in range(given.rollouts))
        async with contextlib.aclosing(trainer.run(requests, max_in_flight=given.in_flight)) as outcomes:
            async for outcome in outcomes:
                done += 1
                failed += outcome.status != "COMPLETED"
                if not done % 5000:
                    progress(f"{done} rollouts, {most / MB:.1f} MB at most")
        seconds = time.monotonic() - began
        looking.cancel()
        ended = time.monotonic()
        while (left := on_disk(folder)) > QUIET_MB * MB and time.monotonic() - ended < given.quiet:
            await asyncio.sleep(0.1)  # between two measurements
        shrunk = time.monotonic() - ended
    figures = {
        "rollouts": done,
        "rollouts_per_s": round(done / seconds, 1),
        "ttl": given.ttl,
        "budget_mb": given.budget,
        "most_mb": round(most / MB, 2),
        "shrunk_s": round(shrunk, 1),
        "left_mb": round(left / MB, 2),
    }
    if failed or most > 2 * given.budget * MB or left > QUIET_MB * MB:
        raise Broken(f"{failed} rollouts did not complete; {json.dumps(figures)}")
    return figures


def run(given: Namespace) -> dict[str, Any]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as state:
        options = [f"--{name}={getattr(given, name.replace('-', '_'))}" for name in ("ttl", "budget", "in-flight")]
        with running(["-m", "tests.faults.housekeeping", f"--serve={state}", *options], core=0) as process:
            take_core(1)
            return measured(measure(given, Path(state), ready_record(process)["grpc"]))


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=20_000, ttl=5.0, budget=20.0, in_flight=64)
    parser.add_argument("--quiet", type=float, default=60.0, metavar="S", help="seconds to shrink in [60]")
    parser.add_argument("--serve", metavar="DIR", help="be the server, with its journal there")
    given = parser.parse_args()
    if given.serve:
        measured(serve(given))
        sys.exit(0)
    show(run(given), given.json)


if __name__ == "__main__":
    main()
