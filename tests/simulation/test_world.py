"""Short runs of the simulation: nothing is found, and a seed gives the same history again."""

import pytest

from tests.simulation.judge import findings
from tests.simulation.world import quiet, world_of


def run(seed, folder, rollouts=8):
    with quiet():
        return _run(seed, folder, rollouts)


def _run(seed, folder, rollouts):
    world = world_of(seed, folder, rollouts=rollouts)
    try:
        world.run()
        return world.history.digest(), [*world.findings, *findings(world.history)], len(world.history)
    finally:
        world.close()


def test_seeds_break_nothing_and_a_seed_gives_its_own_history_again(tmp_path):
    first, other = run(1, tmp_path), run(4, tmp_path)
    assert (first[1], other[1]) == ([], [])
    assert min(first[2], other[2]) > 50
    assert run(1, tmp_path) == first
    assert other[0] != first[0]


FOUND = {
    1000019: "a rollout ended CANCELLED before the ledger had dropped it, and ran again after a crash",
    4000025: "a rollout was cancelled before its Init was committed, and a lower attempt ran again after a restart",
    1000334: "no rollout was sent to the slot of a rollout whose outcome could not be read",
    1000119: "a trainer that did not know one of its rollouts lost each stream by an Init beyond its window",
    2000189: "a trainer whose ledger had lost its attachment id waited for ever for a rollout of its old attachment",
    5000610: "a server ended an attempt for a higher one that the ledger did not have yet, and a crash brought it back",
    5000595: "a rollout that an equal Init had moved was back at the old attachment after a crash, and stayed there",
    40012041: "an application got the outcome of an earlier process after it had asked for a higher attempt",
    40006242: "the answer to a cancel was taken for that to its first frame, whose effect came before",
    50007169: "an attempt that was replaced before its first commit kept its place at its server for ever",
    80003064: "a server refused a lower attempt for a higher one, and a crash undid the higher one",
    122: "an Init for a worker that restarts was refused, and its attempt ran at another server, too",
    1047: "a callback trainer did not notice that another worker than its own had lost its rollouts",
    40016136: "a server went on with a rollout that its trainer had lost, begun anew and dropped",
}
"""What a seed has found, by seed."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_has_found_something_finds_nothing(seed, tmp_path):
    assert run(seed, tmp_path, rollouts=32)[1] == [], FOUND[seed]


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, pytest.param(1005, marks=pytest.mark.long)])
def test_five_seeds_with_many_rollouts_break_nothing(first, tmp_path):
    assert {seed: found for seed in range(first, first + 5) if (found := run(seed, tmp_path, rollouts=32)[1])} == {}
