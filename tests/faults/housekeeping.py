"""Runs short rollouts at full speed with a small disk budget: do the journal's files stay small, and shrink?

python -m tests.faults.housekeeping [--rollouts 20000] [--ttl 5] [--budget 20] [--quiet 60] [--in-flight 64] [--json]

The server is a process of its own, with a journal. Each rollout has two chats. The files are the database, its WAL and
its shared memory, measured every 20 ms; the run is broken when they exceed twice the budget, when they take more than
2 MB once nothing has come for `--quiet` seconds, or when the server refused a rollout.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.policy import scripted
from benchmarks.processes import ready_record, start, stop, take_core
from benchmarks.work import Turns
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig

CHATS, TOKENS = 2, 256
MB = 1_000_000
QUIET_MB = 2.0
"""The most bytes of the files after the quiet time."""


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


class Run:
    """One run, and the sizes of its files."""

    def __init__(self, given: Namespace, folder: Path) -> None:
        self._given = given
        self._folder = folder
        self._most = 0
        self._after: list[tuple[float, int]] = []

    async def run(self, address: str) -> dict[str, Any]:
        """Run the rollouts and watch the files. Raises Broken."""
        given, done, failed = self._given, 0, 0
        looking = asyncio.create_task(self._look())
        began = time.monotonic()
        async with Trainer([address], scripted(TOKENS), config=TrainerConfig(ttl=given.ttl)) as trainer:
            async with contextlib.aclosing(trainer.run(self._requests(), max_in_flight=given.in_flight)) as outcomes:
                async for outcome in outcomes:
                    done += 1
                    failed += outcome.status != "COMPLETED"
                    if not done % 5000:
                        progress(f"{done} rollouts, {self._most / MB:.1f} MB at most")
            seconds = time.monotonic() - began
            most = self._most
            await asyncio.sleep(given.quiet)  # the quiet time that is measured
        looking.cancel()
        left = on_disk(self._folder)
        figures = {
            "rollouts": done,
            "rollouts_per_s": round(done / seconds, 1),
            "ttl": given.ttl,
            "budget_mb": given.budget,
            "most_mb": round(most / MB, 2),
            "quiet_s": given.quiet,
            "left_mb": round(left / MB, 2),
        }
        if failed or most > 2 * given.budget * MB or left > QUIET_MB * MB:
            raise Broken(f"{failed} rollouts did not complete; {json.dumps(figures)}")
        return figures

    async def _look(self) -> None:
        while True:
            self._most = max(self._most, on_disk(self._folder))
            await asyncio.sleep(0.02)  # between two measurements

    async def _requests(self) -> AsyncIterator[RolloutRequest]:
        for number in range(self._given.rollouts):
            yield RolloutRequest(rollout_id=f"h{number}", messages=[{"role": "user", "content": "go"}], max_turns=CHATS)


def run(given: Namespace) -> dict[str, Any]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as state:
        options = [f"--{name}={getattr(given, name.replace('-', '_'))}" for name in ("ttl", "budget", "in-flight")]
        process = start(["-m", "tests.faults.housekeeping", f"--serve={state}", *options], core=0)
        take_core(1)
        try:
            return measured(Run(given, Path(state)).run(ready_record(process)["grpc"]))
        finally:
            stop(process)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=20_000, metavar="N", help="[20000]")
    parser.add_argument("--ttl", type=float, default=5.0, metavar="S", help="[5]")
    parser.add_argument("--budget", type=float, default=20.0, metavar="MB", help="[20]")
    parser.add_argument("--quiet", type=float, default=60.0, metavar="S", help="seconds to wait at the end [60]")
    parser.add_argument("--in-flight", type=int, default=64, metavar="N", help="[64]")
    parser.add_argument("--serve", metavar="DIR", help="be the server, with its journal there")
    given = parser.parse_args()
    if given.rollouts < 1 or given.ttl <= 0 or given.budget <= 0 or given.quiet < 0 or given.in_flight < 1:
        parser.error("--rollouts and --in-flight are at least 1, --ttl and --budget greater than 0")
    if given.serve:
        measured(serve(given))
        sys.exit(0)
    show(run(given), given.json)


if __name__ == "__main__":
    main()
