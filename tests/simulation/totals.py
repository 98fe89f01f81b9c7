"""Adds the records of runs of the simulation, and prints their totals: `python -m tests.simulation.totals FILE...`."""

import json
import sys
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.coverage import Coverage


@dataclass
class Totals:
    """What one run has done, or several runs together."""

    first: list[int] = field(default_factory=list)
    """The first seed of each run."""
    seeds: int = 0
    rollouts: int = 0
    steps: int = 0
    seconds: float = 0.0
    failed: list[int] = field(default_factory=list)
    """The seeds that have failed."""
    undecided: int = 0
    """How many searches for an order of calls were given up."""
    faults: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, line: str) -> None:
        """Adds one record."""
        other = json.loads(line)
        self.faults.update(other.pop("faults"))
        self.coverage.merge(other.pop("coverage"))
        for name, value in other.items():
            setattr(self, name, getattr(self, name) + value)

    def progress(self) -> str:
        """Returns a line for a reader who waits."""
        rate = f"{self.rollouts / max(self.seconds, 1e-9) * 3600:,.0f} rollouts an hour"
        return f"{self.rollouts} rollouts, {self.seeds} seeds, {rate}, {len(self.failed)} failed"

    def line(self) -> str:
        """Returns the record of one run, a line of JSON."""
        return json.dumps(vars(self) | {"coverage": self.coverage.counts})

    def __str__(self) -> str:
        shape = f"{self.seconds:.0f} s, {self.steps / max(self.rollouts, 1):.0f} steps each"
        counts = f"{self.progress()} {self.failed[:50] or ''}\n{shape}"
        faults = ", ".join(f"{kind} {number}" for kind, number in sorted(self.faults.items())) or "no faults"
        given_up = f"searches for an order of calls that were given up: {self.undecided}"
        return "\n".join([counts, faults, given_up, self.coverage.report()])


if __name__ == "__main__":
    totals = Totals()
    for name in sys.argv[1:]:
        with open(name) as lines:
            for text in lines:
                totals.add(text)
    print(totals)
