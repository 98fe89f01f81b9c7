"""Short rollouts for a long time, agent server and trainer in one process: whether memory stays what it is.

python -m tests.faults.soak [--rollouts 100000] [--rate 300] [--ttl 60] [--budget 256] [--in-flight 32]
    [--state-dir DIR] [--ledger FILE] [--workers N] [--json]

With --workers, the server is `serve --workers N`, and memory is the sum of that of the trainer, the supervisor and the
workers. The journal of each worker is in --state-dir, or else in its memory. --budget is that of a server in this
process only.

Each rollout has two chats. What has ended is kept for `--ttl` seconds (and twice as long by the trainer) and within
`--budget` MiB; counted are the rollouts from twice the ttl onward, at an even rate, so that as many are kept at any
time. The slope is that of the least squares through the samples of resident memory, one a second. File descriptors,
tasks and threads are those before the first rollout and after the last.
"""

import asyncio
import itertools
import os
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.policy import scripted
from benchmarks.processes import ready_record, running, serve_command, server_of
from benchmarks.work import Turns
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig

CHATS, TOKENS = 2, 32
SETTLE = 2.0
"""Seconds in which what is over lets go of what it had."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


Pid = int | str
"""A process: its id, or `self`."""


def resident(pids: Sequence[Pid]) -> int:
    """Bytes of memory that the processes have."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE


def threads(pid: Pid) -> int:
    """The number of a process's threads."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("Threads:")).split()[1])


def held(pids: Sequence[Pid]) -> dict[str, int]:
    """What must not grow. The tasks are those of this process."""
    return {
        "fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "tasks": len(asyncio.all_tasks()),
        "threads": sum(map(threads, pids)),
    }


@asynccontextmanager
async def serving(given: Namespace) -> AsyncIterator[tuple[str, list[Pid]]]:
    """Start the server, and yield its address and the processes to look at."""
    limit = 2 * given.in_flight
    if given.workers:
        journal = ("--state-dir", str(given.state_dir.absolute())) if given.state_dir else ("--no-journal",)
        more = ("--workers", str(given.workers), "--record-ttl", str(given.ttl), *journal)
        command = ["-m", *serve_command(limit, more)]
        with TemporaryDirectory() as folder, running(command, core=None, folder=folder) as process:
            server = server_of(process.pid, ready_record(process))
            yield server.grpc, ["self", *server.pids]
        return
    config = ServerConfig(record_ttl=given.ttl, memory_budget=given.budget * 1024**2, max_concurrent=limit)
    async with AgentServer([Turns()], port=0, config=config, state_dir=given.state_dir) as server:
        yield server.address, ["self"]


async def measure(given: Namespace) -> dict[str, Any]:
    """Run the rollouts and sample the process meanwhile. Raises Broken."""
    done = failed = most = 0
    began = 0.0
    samples: list[tuple[int, int]] = []  # rollouts done and bytes, once a second, from twice the ttl onward

    async def roll(trainer: Trainer, requests: AsyncIterator[RolloutRequest] | Iterator[RolloutRequest]) -> None:
        nonlocal done, failed
        async with aclosing(trainer.run(requests, max_in_flight=given.in_flight)) as outcomes:
            async for outcome in outcomes:
                done += 1
                failed += outcome.status != "COMPLETED"
                await outcome.confirm()

    async def requests() -> AsyncIterator[RolloutRequest]:
        """At an even rate, until enough are counted."""
        for number in itertools.count():
            if samples and done - samples[0][0] >= given.rollouts:
                return
            await asyncio.sleep(max(0.0, began + number / given.rate - time.monotonic()))  # the even rate
            yield request(f"soak-{number}")

    async def sample() -> None:
        nonlocal most
        while True:
            await asyncio.sleep(1.0)  # between two samples
            elapsed, size = time.monotonic() - began, resident(pids)
            most = max(most, size)
            if elapsed >= 2 * given.ttl:
                samples.append((done, size))
            if int(elapsed) % 30 == 0:
                progress(f"{elapsed:.0f} s: {done} rollouts, {size / 1e6:.0f} MB")

    keeping = TrainerConfig(ttl=2 * given.ttl)
    async with (
        serving(given) as (address, pids),
        Trainer(address, scripted(TOKENS), ledger=given.ledger, config=keeping) as trainer,
    ):
        await roll(trainer, (request(f"first-{index}") for index in range(50)))
        await asyncio.sleep(SETTLE)  # what is over releases its resources
        before = held(pids)
        began, done = time.monotonic(), 0
        sampling = asyncio.create_task(sample())
        await roll(trainer, requests())
        sampling.cancel()
        samples.append((done, resident(pids)))
        sizes_now = {str(pid): round(resident([pid]) / 1e6, 1) for pid in pids}
        seconds = time.monotonic() - began
        await asyncio.sleep(SETTLE)  # what is over releases its resources
        after = held(pids)
    if failed:
        raise Broken(f"{failed} rollouts did not complete")
    counted, sizes = np.array(samples, dtype=float).T
    slope, _ = np.polyfit(counted, sizes, 1)
    return {
        "bytes_per_rollout": round(float(slope), 1),
        "rollouts_counted": int(counted[-1] - counted[0]),
        "rollouts": done,
        "rollouts_per_s": round(done / seconds, 1),
        "rss_mb": {
            "at_first": round(sizes[0] / 1e6, 1),
            "at_last": round(sizes[-1] / 1e6, 1),
            "most": round(most / 1e6, 1),
        },
        "rss_mb_of_each": sizes_now,
        "before": before,
        "after": after,
        "same": before == after,
    }


def request(rollout_id: str) -> RolloutRequest:
    """Returns a rollout of two chats."""
    return RolloutRequest(rollout_id=rollout_id, messages=[{"role": "user", "content": "go"}], max_turns=CHATS)


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=100_000, rate=300.0, ttl=60.0, budget=256, in_flight=32)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="serve with N processes of their own")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep a journal there")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="keep a ledger there")
    given = parser.parse_args()
    show(measured(measure(given)), given.json)


if __name__ == "__main__":
    main()
