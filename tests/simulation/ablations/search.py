"""Runs seeds with one safeguard switched off, until a seed fails that does not fail with the safeguard."""

from dataclasses import dataclass
from pathlib import Path

from tests.simulation.ablations.ablation import Ablation
from tests.simulation.judge import findings
from tests.simulation.plan import plan_of
from tests.simulation.processes import Randomness
from tests.simulation.world import quiet, world_of


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed that shows a fault, and what shows it."""

    seed: int
    oracle: str
    what: str


def found_by(ablation: Ablation, folder: Path, *, seeds: int, rollouts: int, first: int = 1) -> Found | None:
    """Returns how the fault of an ablation is found; None if `seeds` seeds from `first` on do not show it."""
    for seed in range(first, first + seeds):
        if not ablation.can_show(plan_of(seed, Randomness(seed), rollouts=rollouts)):
            continue
        with ablation.applied():
            found = judged(seed, folder, rollouts)
        if found is not None and judged(seed, folder, rollouts) is None:
            return found
    return None


def judged(seed: int, folder: Path, rollouts: int) -> Found | None:
    """Runs a seed. Returns its first finding, that of an oracle if there is one."""
    with quiet():
        world = world_of(seed, folder, rollouts=rollouts)
        try:
            world.run()
            for finding in findings(world.history):
                of = f"rollout {finding.rollout}: " if finding.rollout else ""
                return Found(seed, finding.oracle, of + finding.what.splitlines()[0])
            for other in world.findings:
                return Found(seed, "the end of the run", other.what.splitlines()[0])
        finally:
            world.close()
    return None
