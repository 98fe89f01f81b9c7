"""Two trainers' rate at one server, without a burden and with it.

python -m benchmarks.noisy_neighbours [--burden stalled|hostile] [--mode attach|callback] [--trainers N] [--in-flight N]
    [--max-concurrent N] [--attachments N] [--hanging N] [--alternations N] [--seconds S] [--json]

stalled: one trainer each; the burden is a third trainer that never answers a chat.
hostile: two owners with 30 trainers each; the burden is a third owner with 1,023 trainers and 300 rollouts, whose
chats it never answers. It comes first.

Each side is a process of its own. Phases without and with the burden alternate, each with a fresh server; the time of a
phase begins when each side has ended a rollout. `ratio` is the rate with the burden over the rate without it, the
median of the alternations, and `worst` the lowest.
"""

import argparse
import asyncio
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, progress, show
from benchmarks.flight import Work, new_names
from benchmarks.grpc_trainers import GrpcTrainer
from benchmarks.policy import never, scripted
from benchmarks.processes import Server, ready_record, running, server
from benchmarks.tap import straight

TOKEN = "BENCHMARK_TOKEN"
"""The name of the environment variable that holds the token of a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parameters of a run."""

    trainers: int = 1
    """Trainers of each side."""
    in_flight: int = 64
    """Rollouts in flight of each trainer."""
    max_concurrent: int = 300
    attachments: int = 1
    """Trainers of the burden."""
    hanging: int = 64
    """Rollouts of the burden."""
    owners: bool = False
    """Whether each side has a token of its own."""
    alternations: int = 5
    seconds: float = 4.0
    mode: str = "attach"


BURDENS = {
    "stalled": Setup(),
    "hostile": Setup(
        trainers=30,
        in_flight=2,
        max_concurrent=100,
        attachments=1023,
        hanging=300,
        owners=True,
        alternations=3,
        seconds=5.0,
    ),
}


async def side(setup: Setup, target: str, burden: bool) -> dict[str, Any]:
    """Run rollouts until the process ends. Print a line when a rollout was served. Answer each stdin line with counts.

    Raises Broken when the rollouts end.
    """
    ended = asked = 0
    served = asyncio.Event()

    def done() -> None:
        nonlocal ended
        ended += 1
        served.set()

    async def hang(request: Any) -> Any:
        nonlocal asked
        asked += 1
        served.set()
        await never(request)

    each = -(-setup.hanging // setup.attachments) if burden else None
    work = Work(mode=setup.mode, in_flight=each or setup.in_flight)
    if burden:
        os.nice(19)  # the burden's load on the server is measured, not its load on this machine
    async with AsyncExitStack() as stack:
        new = [
            GrpcTrainer(
                work,
                Server(0, target, ""),
                straight,
                hang if burden else scripted(work.tokens),
                token=os.environ[TOKEN],
            )
            for _ in range(setup.attachments if burden else setup.trainers)
        ]
        made = [await stack.enter_async_context(trainer) for trainer in new]
        runs = (trainer.run(itertools.islice(new_names(), each), done) for trainer in made[: setup.hanging])
        running = asyncio.gather(*runs)
        running.add_done_callback(lambda _: served.set())
        await served.wait()
        while burden and not all(server.attached for trainer in made for server in trainer.trainer.servers):
            await asyncio.sleep(0.05)
        _report(event="served")
        while not running.done() and await asyncio.to_thread(lambda: bool(sys.stdin.readline())):
            _report(ended=ended, asked=asked, at=time.perf_counter())
        if running.done():
            running.result()
            raise Broken("the rollouts have come to an end")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return {}


def phase(setup: Setup, burdened: bool) -> float:
    """Return the rollouts per second of both sides together."""
    with ExitStack() as stack:
        tokens = {name: secrets.token_hex(16) if setup.owners else "" for name in ("one", "two", "burden")}
        options = []
        if setup.owners:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tokens"
            file.write_text("\n".join(f"{owner}={token}" for owner, token in tokens.items()))
            options = ["--token-file", str(file)]
        target = stack.enter_context(server(setup.mode, setup.max_concurrent, options)).grpc

        def spawn(name: str) -> "subprocess.Popen[str]":
            given = json.dumps([asdict(setup), target, name == "burden"])
            command = ["-m", "benchmarks.noisy_neighbours", "--side", given]
            process = stack.enter_context(running(command, core=1, environment={TOKEN: tokens[name]}))
            ready_record(process)
            return process

        burden = [spawn("burden")] if burdened else []
        sides = [spawn("one"), spawn("two")]
        time.sleep(0.5)
        first = [_count(process) for process in sides]
        time.sleep(setup.seconds)
        last = [_count(process) for process in sides]
        if any(_count(process)["asked"] < min(setup.hanging, setup.max_concurrent) for process in burden):
            raise Broken("the burden has fewer rollouts than it could have")
        return float(sum((b["ended"] - a["ended"]) / (b["at"] - a["at"]) for a, b in zip(first, last, strict=True)))


async def measure(setup: Setup) -> dict[str, Any]:
    """Run phases without and with the burden in turn, and return the figures."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(setup.alternations):
        for burdened, found in rates.items():
            found.append(phase(setup, burdened))
            progress(f"{number + 1} of {setup.alternations}, burden {burdened}: {found[-1]:.1f} rollouts/s")
    ratios = [round(burdened / free, 3) for free, burdened in zip(rates[False], rates[True], strict=True)]
    return {
        "benchmark": "noisy_neighbours",
        **asdict(setup),
        "rollouts_per_s_without": round(statistics.median(rates[False]), 1),
        "rollouts_per_s_with_burden": round(statistics.median(rates[True]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "worst": min(ratios),
        "ratios": ratios,
    }


def _report(**record: Any) -> None:
    """Print one line for the process that measures."""
    print(json.dumps(record), flush=True)


def _count(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Ask a process for its counts."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return ready_record(process)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--burden", choices=tuple(BURDENS), default="stalled", help="[stalled]")
    parser.add_argument("--mode", choices=("attach", "callback"), help="[attach]")
    for name in ("trainers", "in-flight", "max-concurrent", "attachments", "hanging", "alternations"):
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    if given["side"]:
        parameters, target, burden = json.loads(given["side"])
        measured(side(Setup(**parameters), target, burden))
    else:
        changed = {name: value for name, value in given.items() if name in Setup.__slots__ and value is not None}
        show(measured(measure(replace(BURDENS[given["burden"]], **changed))), given["json"])


if __name__ == "__main__":
    main()
