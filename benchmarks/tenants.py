"""Three owners at one server, the third hostile and not there at all.

python -m benchmarks.tenants [--trainers 30] [--in-flight 2] [--alternations 3] [--seconds 5] [--json]

Every owner is a process with so many attached trainers, each of which keeps so many rollouts in flight. The hostile
owner comes first: it holds 1,023 attachments, and runs 300 rollouts whose chats it never answers. Each phase
has a fresh server; its time begins when each of the other two owners has been served. `ratio` is the other two owners'
rate with the hostile one over their rate without, the median of the alternations, and `worst` the lowest.
"""

import asyncio
import os
import secrets
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, Parser, measured, show
from benchmarks.flight import Done, Work, in_flight, new_names
from benchmarks.grpc_trainers import check, rollout
from benchmarks.policy import never, scripted
from benchmarks.processes import ready_record, server
from benchmarks.side_by_side import alternate, asked, count, rate, report, report_counts, spawn
from osmosis_grpc.trainer import Credentials, Trainer

OWNERS = ("one", "two", "hostile")
ATTACHMENTS = 1023
HANGING = 300
OPTIONS = {"trainers": 30, "in-flight": 2, "max-concurrent": 100, "alternations": 3, "turns": 8, "tokens": 256}
TOKEN = "BENCHMARK_TOKEN"
"""The environment variable with an owner's token."""


async def train(work: Work, address: str, trainers: int) -> dict[str, Any]:
    """Be a good owner."""
    async with AsyncExitStack() as stack:
        policy, credentials = scripted(work.tokens), Credentials(token=os.environ[TOKEN])
        new = [Trainer([address], policy, credentials=credentials) for _ in range(trainers)]
        made = [await stack.enter_async_context(trainer) for trainer in new]

        async def run(trainer: Any, done: Done) -> None:
            async def one(name: str) -> None:
                check(await trainer.rollout(rollout(name, work)), work)

            await in_flight(new_names(), work.in_flight, one, done)

        return await report_counts(lambda done: asyncio.gather(*(run(trainer, done) for trainer in made)))


async def harm(work: Work, address: str) -> dict[str, Any]:
    """Be the hostile owner: report once it holds what it can get, then answer every line on stdin."""
    hanging = 0
    os.nice(19)  # it would have a machine of its own: what is measured is what it takes from others at the server

    async def hang(request: Any) -> Any:
        nonlocal hanging
        hanging += 1
        await never(request)

    async with AsyncExitStack() as stack:
        credentials = Credentials(token=os.environ[TOKEN])
        new = [Trainer([address], hang, credentials=credentials) for _ in range(ATTACHMENTS)]
        made = [await stack.enter_async_context(trainer) for trainer in new]
        while not all(server.attached for trainer in made for server in trainer.servers):
            await asyncio.sleep(0.05)
        tasks = [
            asyncio.ensure_future(made[number % len(made)].rollout(rollout(name, work)))
            for number, name in zip(range(HANGING), new_names(), strict=False)
        ]
        while hanging < work.in_flight:
            await asyncio.sleep(0.05)
        report(event="served")
        while await asyncio.to_thread(asked):
            report(ended=0, asked=hanging, at=time.perf_counter())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {}


async def measure(work: Work, trainers: int, max_concurrent: int, alternations: int, seconds: float) -> dict[str, Any]:
    """Phases without and with the hostile owner, in turn."""

    def phase(hostile: bool) -> float:
        with ExitStack() as stack:
            tokens = {owner: secrets.token_hex(16) for owner in OWNERS}
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tokens"
            file.write_text("\n".join(f"{owner}={token}" for owner, token in tokens.items()))
            target = stack.enter_context(server("attach", max_concurrent, ["--token-file", str(file)])).grpc

            def owner(name: str, *options: str) -> Any:
                options = ("--owner", target, "--trainers", str(trainers), *options)
                return spawn(stack, "benchmarks.tenants", work, *options, environment={TOKEN: tokens[name]})

            harming = [owner("hostile", "--hostile")] if hostile else []
            for process in harming:
                ready_record(process)
            figure = rate([owner(name) for name in OWNERS[:2]], seconds)
            for process in harming:
                if count(process)["asked"] < max_concurrent:
                    raise Broken("the hostile owner has less than all slots, though it came first")
            return figure

    return {
        "benchmark": "tenants",
        "owners": 3,
        "trainers": trainers,
        "in_flight": work.in_flight,
        "turns": work.turns,
        "tokens": work.tokens,
        "max_concurrent": max_concurrent,
        "seconds": seconds,
    } | alternate("hostile", alternations, phase)


def main() -> None:
    parser = Parser(__doc__)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"[{default}]")
    parser.add_argument("--seconds", type=float, default=5.0, help="[5]")
    parser.add_argument("--owner", metavar="HOST:PORT", help=f"be one of the owners, with {TOKEN}")
    parser.add_argument("--hostile", action="store_true", help="be the hostile one")
    given = parser.parse_args()
    work = Work(mode="attach", turns=given.turns, tokens=given.tokens, in_flight=given.in_flight)
    if given.owner:
        measured(harm(work, given.owner) if given.hostile else train(work, given.owner, given.trainers))
    else:
        sizes = (given.trainers, given.max_concurrent, given.alternations, given.seconds)
        show(measured(measure(work, *sizes)), given.json)


if __name__ == "__main__":
    main()
