"""advantages(): the rollouts of a group, compared."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Failure, OutcomeStatus, Sample
from osmosis_grpc.trainer import Group, OutcomeGroup, RolloutOutcome, advantages

REWARDS = st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=2, max_size=12)


def outcome(number, reward, samples=("main",), **fields):
    named = dict.fromkeys(samples, Sample(trainable=True)) if not isinstance(samples, dict) else samples
    defaults = {"status": OutcomeStatus.COMPLETED, "group": Group("g", number, 0)}
    return RolloutOutcome(rollout_id=f"g-{number}", reward=reward, samples=named, **(defaults | fields))


def group(*rewards, **fields):
    return [outcome(number, reward, **fields) for number, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("grpo", np.array([0.5, -0.5, -0.5, 0.5]) / (math.sqrt(1 / 3) + 1e-6)),
        ("grpo_no_std", [0.5, -0.5, -0.5, 0.5]),
        ("rloo", [1 - 1 / 3, -2 / 3, -2 / 3, 1 - 1 / 3]),
    ],
)
def test_what_each_method_computes(method, expected):
    found = advantages(group(1.0, 0.0, 0.0, 1.0), method)
    assert found.values == pytest.approx(np.asarray(expected), rel=1e-6)
    assert found.values.dtype == found.rewards.dtype == np.float32
    assert found.keys == tuple((f"g-{number}", "main") for number in range(4))
    assert found.rewards.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert not found.zero_variance


def test_grpo_is_the_default():
    assert advantages(group(1.0, 0.0)) == advantages(group(1.0, 0.0), "grpo")


@settings(deadline=None)
@given(REWARDS, st.sampled_from(["grpo", "grpo_no_std", "rloo"]))
def test_advantages_add_up_to_nothing(rewards, method):
    found = advantages(group(*rewards), method)
    assert np.isfinite(found.values).all()
    assert float(found.values.sum()) == pytest.approx(0, abs=1e-3)
    better = np.argsort(rewards, kind="stable")
    assert (np.diff(found.values[better]) >= 0).all(), "a higher reward has no lower advantage"


@settings(deadline=None)
@given(REWARDS)
def test_rloo_by_its_definition(rewards):
    found = advantages(group(*rewards), "rloo")
    others = [np.mean([*rewards[:index], *rewards[index + 1 :]]) for index in range(len(rewards))]
    assert found.values == pytest.approx(np.array(rewards) - others, abs=2e-5)  # equal up to 1e-5: zero


@pytest.mark.parametrize("method", ["grpo", "grpo_no_std", "rloo"])
@pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0], [0.1 + 0.2, 0.3, 0.3], [1.0, 0.99999994], [-1e6, -1e6 + 0.06]])
def test_a_group_without_variance_is_flagged(method, rewards):
    found = advantages(group(*rewards), method)
    assert found.zero_variance
    assert not found.values.any()


def test_an_empty_group():
    with pytest.raises(InvalidArgument) as raised:
        advantages([])
    assert [field for field, _ in raised.value.violations] == ["group"]


@pytest.mark.parametrize("rewards", [[1.0, 0.99999], [1e-9, 2e-9], [0.0, 1e-12]])
def test_small_rewards_that_differ_are_compared(rewards):
    found = advantages(group(*rewards), "grpo_no_std")
    assert not found.zero_variance
    assert found.values.any()


def test_samples_share_the_reward_of_their_rollout():
    """One rollout asked a helper, the other did not; the baseline is that of the two rollouts."""
    found = advantages([outcome(0, 1.0, ("main", "helper")), outcome(1, 0.0)], "grpo_no_std")
    assert dict(zip(found.keys, found.values.tolist(), strict=True)) == {
        ("g-0", "main"): 0.5,
        ("g-0", "helper"): 0.5,
        ("g-1", "main"): -0.5,
    }


def test_samples_with_rewards_of_their_own_are_compared_by_name():
    def both(number, main, helper):
        samples = {"main": Sample(trainable=True, reward=main), "helper": Sample(trainable=True, reward=helper)}
        return outcome(number, None, samples)

    found = advantages([both(0, 1.0, 10.0), both(1, 0.0, 30.0)], "grpo_no_std")
    assert dict(zip(found.keys, found.values.tolist(), strict=True)) == {
        ("g-0", "main"): 0.5,
        ("g-0", "helper"): -10.0,
        ("g-1", "main"): -0.5,
        ("g-1", "helper"): 10.0,
    }


def test_a_rollout_that_never_asked_the_policy_is_compared():
    found = advantages([outcome(0, 1.0), outcome(1, 0.0, ())], "grpo_no_std")
    assert found.keys == (("g-0", "main"), ("g-1", ""))
    assert found.values.tolist() == [0.5, -0.5]


BAD = {
    "failed": (
        replace(outcome(1, None), status=OutcomeStatus.FAILED, failure=Failure("agent", "it broke")),
        "g-1 .*FAILED: it broke",
    ),
    "an evaluation": (replace(outcome(1, 1.0), evaluation=True), "g-1 .*evaluation"),
    "no reward": (outcome(1, None), "g-1 .*no reward"),
    "twice": (outcome(0, 1.0), "g-0 .*twice"),
    "another group": (outcome(1, 1.0, group=Group("h", 0, 2)), "several groups, g and h"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_compared_is_refused_by_name(case):
    bad, message = BAD[case]
    with pytest.raises(InvalidArgument, match=message):
        advantages([outcome(0, 1.0), bad])


def test_it_takes_one_group_at_a_time():
    one = OutcomeGroup(id="g", size=2, outcomes=tuple(group(1.0, 0.0)))
    assert advantages(one) == advantages(group(1.0, 0.0))
    with pytest.raises(TypeError, match="holds a OutcomeGroup, not the outcomes of one group"):
        advantages([one, one])


def test_an_unknown_method_is_refused():
    with pytest.raises(InvalidArgument, match="method: 'ppo' is not one of grpo, grpo_no_std, rloo"):
        advantages(group(1.0, 0.0), "ppo")
