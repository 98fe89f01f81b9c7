"""Two trainers at one server, with a third one that stalls and without it.

python -m benchmarks.fairness [--mode attach] [--in-flight 64] [--max-concurrent 300] [--alternations 5]
    [--seconds 4] [--json]

Every trainer is a process of its own and keeps as many rollouts in flight. The third never answers a chat. Each
phase has a fresh server; its time begins when everybody has been served once. `ratio` is the two trainers' rate with
the third one over their rate without, the median of the alternations.
"""

import asyncio
from contextlib import ExitStack
from typing import Any

from benchmarks.figures import Parser, measured, show
from benchmarks.flight import Work, new_names
from benchmarks.grpc_trainers import TRAINERS
from benchmarks.policy import never, scripted
from benchmarks.processes import Server, ready_record, server
from benchmarks.side_by_side import alternate, count, rate, report_counts, spawn
from benchmarks.tap import straight
from osmosis_grpc.trainer import ChatRequest

OPTIONS = {"in-flight": 64, "max-concurrent": 300, "alternations": 5, "turns": 8, "tokens": 256}


async def train(work: Work, address: str, stalled: bool) -> dict[str, Any]:
    """Be one of the trainers."""
    asked = asyncio.Event()

    async def stall(request: ChatRequest) -> Any:
        asked.set()
        await never(request)

    policy = stall if stalled else scripted(work.tokens)
    async with TRAINERS[work.mode](work, Server(0, address, ""), straight, policy) as trainer:

        async def run(done: Any) -> None:
            rollouts = asyncio.ensure_future(trainer.run(new_names(), done))
            if stalled:
                await asked.wait()
                done()
            await rollouts

        return await report_counts(run)


async def measure(work: Work, max_concurrent: int, alternations: int, seconds: float) -> dict[str, Any]:
    """Phases without and with the third trainer, in turn."""

    def phase(third: bool) -> float:
        with ExitStack() as stack:
            target = stack.enter_context(server(work.mode, max_concurrent)).grpc
            options = ("--trainer", target, "--mode", work.mode)
            busy = [spawn(stack, "benchmarks.fairness", work, *options) for _ in range(2)]
            stalled = [spawn(stack, "benchmarks.fairness", work, *options, "--stalled")] if third else []
            for process in stalled:
                ready_record(process)
            figure = rate(busy, seconds)
            for process in stalled:
                count(process)  # it is still there
            return figure

    return {
        "benchmark": "fairness",
        "mode": work.mode,
        "turns": work.turns,
        "tokens": work.tokens,
        "in_flight": work.in_flight,
        "max_concurrent": max_concurrent,
        "seconds": seconds,
    } | alternate("stalled", alternations, phase)


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
