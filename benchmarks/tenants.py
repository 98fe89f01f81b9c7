"""Three owners at one server, the third hostile and not there at all.

python -m benchmarks.tenants [--trainers 30] [--in-flight 2] [--alternations 3] [--seconds 5] [--json]

Every owner is a process with so many attached trainers, each of which keeps so many rollouts in flight. The hostile
owner comes first: it holds 1,023 attachments, and runs 300 rollouts whose chats it never answers. Each phase
has a fresh server; its time begins when each of the other two owners has been served. `ratio` is the other two owners'
rate with the hostile one over their rate without, the median of the alternations, and `worst` the lowest.
"""

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.flight import Work, in_flight, new_names
from benchmarks.grpc_trainers import check, rollout
from benchmarks.policy import never, scripted
from benchmarks.processes import ready_record, server, start, stop
from osmosis_grpc.trainer import attach

OWNERS = ("one", "two", "hostile")
ATTACHMENTS = 1023
HANGING = 300
OPTIONS = {"trainers": 30, "in-flight": 2, "max-concurrent": 100, "alternations": 3, "turns": 8, "tokens": 256}


async def train(work: Work, address: str, token: str, trainers: int) -> dict[str, Any]:
    """A good owner: a record when it is served, then its count of ended rollouts for every line on stdin."""
    served, ended = asyncio.Event(), 0

    def done() -> None:
        nonlocal ended
        ended += 1
        served.set()

    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(attach([address], scripted(work.tokens), token=token))
            for _ in range(trainers)
        ]

        async def run(trainer: Any) -> None:
            async def one(name: str) -> None:
                check(await trainer.rollout(rollout(name, work)), work)

            await in_flight(new_names(), work.in_flight, one, done)

        running = asyncio.gather(*map(run, made))
        running.add_done_callback(lambda _: served.set())
        await served.wait()
        print(json.dumps({"event": "served"}), flush=True)
        while not running.done() and bool(await asyncio.to_thread(sys.stdin.readline)):
            print(json.dumps({"ended": ended, "at": time.perf_counter()}), flush=True)
        if running.done():
            running.result()
            raise Broken("the trainers' rollouts have come to an end")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return {}


async def harm(work: Work, address: str, token: str) -> dict[str, Any]:
    """The hostile owner: a record once it holds what it can get, then an answer for every line on stdin."""
    asked = 0
    os.nice(19)  # it would have a machine of its own: what is measured is what it takes from others at the server

    async def hang(request: Any) -> Any:
        nonlocal asked
        asked += 1
        await never(request)

    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(attach([address], hang, token=token)) for _ in range(ATTACHMENTS)]
        while not all(server.attached for trainer in made for server in trainer.servers):
            await asyncio.sleep(0.05)
        tasks = [
            asyncio.ensure_future(made[number % len(made)].rollout(rollout(name, work)))
            for number, name in zip(range(HANGING), new_names(), strict=False)
        ]
        while asked < work.in_flight:
            await asyncio.sleep(0.05)
        print(json.dumps({"event": "served"}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({"ended": 0, "asked": asked, "at": time.perf_counter()}), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {}


async def measure(work: Work, trainers: int, max_concurrent: int, alternations: int, seconds: float) -> dict[str, Any]:
    """Phases without and with the hostile owner, in turn."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(alternations):
        for hostile in (False, True):
            rates[hostile].append(_phase(work, trainers, max_concurrent, seconds, hostile))
            progress(f"tenants: {number + 1} of {alternations}, hostile {hostile}: {rates[hostile][-1]:.1f} rollouts/s")
    ratios = [with_it / without for without, with_it in zip(rates[False], rates[True], strict=True)]
    return {
        "benchmark": "tenants",
        "owners": 3,
        "trainers": trainers,
        "in_flight": work.in_flight,
        "turns": work.turns,
        "tokens": work.tokens,
        "max_concurrent": max_concurrent,
        "alternations": alternations,
        "seconds": seconds,
        "rollouts_per_s_without": round(statistics.median(rates[False]), 1),
        "rollouts_per_s_with_hostile": round(statistics.median(rates[True]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "worst": round(min(ratios), 3),
    }


def _phase(work: Work, trainers: int, max_concurrent: int, seconds: float, hostile: bool) -> float:
    """The rate of the two good owners together."""
    with ExitStack() as stack:
        tokens = {owner: secrets.token_hex(16) for owner in OWNERS}
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tokens"
        file.write_text("\n".join(f"{owner}={token}" for owner, token in tokens.items()))
        started = stack.enter_context(server("attach", max_concurrent, ["--token-file", str(file)]))
        harming = [_owner(stack, work, started.grpc, tokens["hostile"], trainers, True)] if hostile else []
        for process in harming:
            ready_record(process)
        busy = [_owner(stack, work, started.grpc, tokens[owner], trainers, False) for owner in OWNERS[:2]]
        for process in busy:
            ready_record(process)
        time.sleep(0.5)
        first = [_count(process) for process in busy]
        time.sleep(seconds)
        last = [_count(process) for process in busy]
        for process in harming:
            if _count(process)["asked"] < max_concurrent:
                raise Broken("the hostile owner has less than all slots, though it came first")
    return sum(
        (after["ended"] - before["ended"]) / (after["at"] - before["at"])
        for before, after in zip(first, last, strict=True)
    )


def _owner(
    stack: ExitStack, work: Work, address: str, token: str, trainers: int, hostile: bool
) -> "subprocess.Popen[str]":
    arguments = [
        "-m",
        "benchmarks.tenants",
        "--owner",
        address,
        "--in-flight",
        str(work.in_flight),
        "--turns",
        str(work.turns),
        "--tokens",
        str(work.tokens),
        "--trainers",
        str(trainers),
        *(["--hostile"] if hostile else []),
    ]
    process = start(arguments, core=1, environment={"BENCHMARK_TOKEN": token})
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
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"[{default}]")
    parser.add_argument("--seconds", type=float, default=5.0, help="[5]")
    parser.add_argument("--owner", metavar="HOST:PORT", help="be one of the owners, with BENCHMARK_TOKEN")
    parser.add_argument("--hostile", action="store_true", help="be the hostile one")
    given = parser.parse_args()
    work = Work(mode="attach", turns=given.turns, tokens=given.tokens, in_flight=given.in_flight)
    token = os.environ.get("BENCHMARK_TOKEN", "")
    if given.owner and given.hostile:
        measured(harm(work, given.owner, token))
    elif given.owner:
        measured(train(work, given.owner, token, given.trainers))
    else:
        figures = measure(work, given.trainers, given.max_concurrent, given.alternations, given.seconds)
        show(measured(figures), given.json)


if __name__ == "__main__":
    main()
