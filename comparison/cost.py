"""Measure what each system costs, in alternation: `python -m comparison.cost`.

A round measures every system once, each in processes of its own with a fresh engine, so what else the machine does
meets all of them. The engine and the agents are not counted. A figure is the median of the rounds; a ratio is the
median of the ratios in each round, so it can differ from the ratio of the figures.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from comparison.known import BY_NAME, ENGINE_ALONE, System
from comparison.run import load, save
from comparison.scripted import TOKENS, TURNS
from comparison.stage import Opened, opened, stage, used

WARM, COUNT, IN_FLIGHT, ONE_BY_ONE = 32, 64, 64, 12
OPEN = 1000
"""Streams that are open at once."""
LONG_TURNS, LONG_COUNT = 36, 12
"""Clients send a history of up to so many turns, in so many rollouts."""
Figures = dict[str, float]
MEASURES: dict[str, str] = {
    "cpu": "CPU of a rollout, ms",
    "rate": "rollouts/s",
    "added": "time added to a chat, ms",
    "memory": "memory, MB",
    "open_cpu": "CPU of an open stream, ms",
    "open_memory": f"memory with {OPEN:,} open streams, MB",
    "long": "CPU of a chat with 64 KB, ms",
    "growth": f"CPU of a chat in {LONG_TURNS} turns, of one in {TURNS} turns",
}
"""The figures and their titles. Less is better but for the rate."""


class _Running:
    """A system that runs, and what its rollouts cost."""

    def __init__(self, system: System, running: Opened) -> None:
        self.system, self.running = system, running
        self.memory = 0.0

    def many(self, case: str, key: str, count: int, in_flight: int, tokens: int = 0) -> tuple[float, float]:
        """Run a case many times; return milliseconds of CPU and of time for each rollout."""
        root = self.running.process.pid
        before, _ = used(root)
        tokens = 0 if self.system is ENGINE_ALONE else tokens
        got = self.running.order(do="many", case=case, key=key, count=count, in_flight=in_flight, tokens=tokens)
        after, self.memory = used(root)
        if got["bad"]:
            raise RuntimeError(f"{got['bad']} of {count} rollouts of {case} failed: {got['first_bad']}")
        return (after - before) * 1000 / count, got["wall"] * 1000 / count


def measure(system: System, scale: float, *, whole: bool = True) -> Figures:
    """Measure one system once. `scale` shortens a trial run. Only a `whole` measurement has open and long histories."""
    figures: Figures = {}

    def share(count: int) -> int:
        return max(1, int(count * scale))

    with stage("chatml") as on, opened(system, on) as process:
        running = _Running(system, process)
        running.many("bench", "warm", WARM, IN_FLIGHT, TURNS * TOKENS)
        figures["cpu"], wall = running.many("bench", "load", share(COUNT), IN_FLIGHT, TURNS * TOKENS)
        figures["rate"], figures["memory"] = 1000 / wall, running.memory
        _, alone = running.many("bench", "alone", share(ONE_BY_ONE), 1, TURNS * TOKENS)
        figures["chat"] = alone / TURNS
        if not whole:
            return figures
        few, _ = running.many("bench", "few", share(LONG_COUNT), 8, TURNS * TOKENS)
        many, _ = running.many(f"bench{LONG_TURNS}", "many", share(LONG_COUNT), 8, LONG_TURNS * TOKENS)
        figures["growth"] = (many / LONG_TURNS) / (few / TURNS) if few else 0.0
        figures["long"] = running.many("long", "long", share(COUNT // 2), IN_FLIGHT)[0] / 3
    if system.streams:
        with stage("chatml") as on, opened(system, on) as process:
            running = _Running(system, process)
            running.many("open", "warm", 1, 1)
            cpu, _ = running.many("open", "open", share(OPEN), share(OPEN))
            figures["open_cpu"], figures["open_memory"] = cpu / 2, running.memory
    return figures


def summed(rounds: dict[str, list[Figures]]) -> dict[str, Any]:
    """Return the medians of each system, and the ratios to the best of the peers, round by round."""
    floor = [each["chat"] for each in rounds[ENGINE_ALONE.name]] if ENGINE_ALONE.name in rounds else []
    for figures in rounds.values():
        for each, alone in zip(figures, floor, strict=False):
            each["added"] = each["chat"] - alone
    medians = {
        name: {key: round(statistics.median(f[key] for f in figures if key in f), 2) for key in figures[0]}
        for name, figures in rounds.items()
    }
    return {"medians": medians, "ratios": {name: _ratios(name, rounds) for name in rounds if name in OURS}}


OURS = ("osmosis_native", "osmosis_base_url")


def _ratios(name: str, rounds: dict[str, list[Figures]]) -> Figures:
    peers = [figures for peer, figures in rounds.items() if peer not in (*OURS, ENGINE_ALONE.name)]
    out: Figures = {}
    for key in ("cpu", "added", "memory"):
        each_round = zip(rounds[name], *peers, strict=False)
        shares = [own[key] / min(one[key] for one in others) for own, *others in each_round if others and key in own]
        if shares:
            out[key] = round(statistics.median(shares), 2)
    return out


def run(systems: Sequence[System], count: int, scale: float) -> dict[str, Any]:
    """Measure every system in every round. The order turns, so that none is always behind another."""
    rounds: dict[str, list[Figures]] = {}
    failed: dict[str, str] = {}
    for number in range(count):
        turn = number % len(systems)
        for system in [*systems[turn:], *systems[:turn]]:
            if system.name in failed:
                continue
            try:
                got = measure(system, scale, whole=number == 0)
            except RuntimeError as error:
                failed[system.name] = str(error)[:300]
                rounds.pop(system.name, None)
                print(number, system.name, failed[system.name], flush=True)
                continue
            rounds.setdefault(system.name, []).append(got)
            print(number, f"{system.name:17}", {name: round(value, 2) for name, value in got.items()}, flush=True)
    return {**summed(rounds), "rounds": count, "failed": failed}


def main() -> int:
    """Measure what the options choose. All systems in full are recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--system", action="append", choices=sorted(BY_NAME), help="all by default; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the rollouts, for a trial; not recorded")
    options = parser.parse_args()
    systems = [BY_NAME[name] for name in options.system or BY_NAME if options.system or BY_NAME[name].measured]
    found = run([s for s in [*systems, ENGINE_ALONE] if s.python.exists()], options.rounds, options.scale)
    for name, figures in found["medians"].items():
        print(f"{name:17}", figures)
    print(found["ratios"], found["failed"])
    if not options.system and options.scale == 1.0:
        record = load()
        record["cost"] = found
        save(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
