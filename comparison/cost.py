"""Measure what each system costs, in alternation: `python -m comparison.cost --rounds 5`.

A round measures every system once, each in processes of its own with a fresh engine, so what the machine does beside it
meets all of them. The engine and the agents are not counted. A figure of a system is the median of the rounds, and a
ratio is the median of the ratios in each round.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence

from comparison.known import BY_NAME, ENGINE_ALONE, System
from comparison.scripted import TOKENS, TURNS
from comparison.stage import opened, stage, used

WARM, COUNT, IN_FLIGHT = 48, 256, 64
ONE_BY_ONE = 24
Figures = dict[str, float | str]


def measure(system: System, scale: float) -> Figures:
    """Measure one system once. `scale` shortens a trial run."""
    with stage("chatml") as on, opened(system, on) as running:

        def many(case: str, key: str, count: int, in_flight: int, tokens: int) -> tuple[Figures, float]:
            count = max(1, int(count * scale))
            before, _ = used(running.process.pid)
            tokens = tokens if system is not ENGINE_ALONE else 0
            got = running.order(do="many", case=case, key=key, count=count, in_flight=in_flight, tokens=tokens)
            after, memory = used(running.process.pid)
            if got["bad"]:
                raise RuntimeError(f"{got['bad']} of {count} rollouts of {case} failed: {got['first_bad']}")
            return {"cpu": (after - before) * 1000 / count, "wall": got["wall"] * 1000 / count}, memory

        many("bench", "warm", WARM, IN_FLIGHT, TURNS * TOKENS)
        loaded, memory = many("bench", "load", COUNT, IN_FLIGHT, TURNS * TOKENS)
        alone, _ = many("bench", "alone", ONE_BY_ONE, 1, TURNS * TOKENS)
        return {"cpu": loaded["cpu"], "rollouts_a_second": 1000 / float(loaded["wall"]),
                "chat": float(alone["wall"]) / TURNS, "memory": memory}  # fmt: skip


def rounds(systems: Sequence[System], count: int, scale: float) -> Iterator[tuple[int, System, Figures]]:
    """Yield the figures of every system in every round. The order turns, so that none is always behind another."""
    for number in range(count):
        turn = number % len(systems)
        for system in [*systems[turn:], *systems[:turn]]:
            yield number, system, measure(system, scale)


def main() -> int:
    """Measure what the options choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--system", action="append", choices=sorted(BY_NAME), help="all by default; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the rollouts, for a trial; not recorded")
    options = parser.parse_args()
    systems = [BY_NAME[name] for name in options.system or BY_NAME] + [ENGINE_ALONE]
    systems = [system for system in systems if system.python.exists()]
    figures: dict[str, list[Figures]] = {}
    for number, system, got in rounds(systems, options.rounds, options.scale):
        figures.setdefault(system.name, []).append(got)
        print(number, f"{system.name:17}", {name: round(value, 2) for name, value in got.items()}, flush=True)
    for name, all_of_it in figures.items():
        print(f"{name:17}", {key: round(statistics.median(one[key] for one in all_of_it), 2) for key in all_of_it[0]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
