"""Safeguards that are switched off are found by a known seed. `make sim-ablations` runs the whole table."""

from inspect import Parameter, signature

import pytest

from tests.simulation.ablations.search import found_by
from tests.simulation.ablations.table import TABLE

FOUND = {
    "idempotency of Init": 2,
    "attempts of Init": 2,
    "tombstones": 2,
    "commit before an outcome is sent": 15,
    "end without the agent": 16,
    "joining of chats": 1,
    "result ids": 159,
    "recorded replies": 41,
}
"""A seed that finds the fault, by the name of the safeguard."""


def test_there_are_many_safeguards_and_each_says_what_breaks():
    assert len(TABLE) >= 25
    assert all(ablation.breaks for ablation in TABLE.values())


@pytest.mark.parametrize("name", TABLE)
def test_a_replacement_has_the_parameters_of_the_function(name):
    original = getattr(TABLE[name].owner, TABLE[name].function)
    wanted, own = (list(signature(one).parameters.values()) for one in (original, TABLE[name].replace(original)))
    if not any(one.kind is Parameter.VAR_POSITIONAL for one in own):
        named = [one.name for one in own if one.kind is not Parameter.VAR_KEYWORD]
        assert named == [one.name for one in wanted][: len(named)]
        assert len(named) == len(wanted) or any(one.kind is Parameter.VAR_KEYWORD for one in own)


QUICK = "joining of chats", "result ids"
"""The slow group has the others."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FOUND]
)
def test_a_safeguard_that_is_off_is_found(name, tmp_path):
    found = found_by(TABLE[name], tmp_path, seeds=1, rollouts=12, first=FOUND[name])
    assert found is not None
