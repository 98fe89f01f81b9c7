"""The decorator for reward functions."""

import inspect

import numpy as np
import pytest

from osmosis_grpc.agent.reward_decorator import osmosis_reward


@osmosis_reward
def exact(solution_str, ground_truth, extra_info=None, **kwargs):
    """Whether they are the same."""
    return 1 if solution_str == ground_truth else 0


def test_the_result_is_a_float():
    assert exact("4", "4") == 1.0
    assert exact("4", "5") == 0.0
    assert type(exact("4", "4")) is float
    assert exact(solution_str="4", ground_truth="4", extra_info={"a": 1}) == 1.0


def test_the_function_is_still_itself():
    assert exact.__name__ == "exact"
    assert exact.__doc__ == "Whether they are the same."
    assert list(inspect.signature(exact).parameters) == ["solution_str", "ground_truth", "extra_info", "kwargs"]


def two(solution_str, ground_truth):
    return 0.5


def three(solution_str, ground_truth, extra_info=None):
    return float(extra_info or 0)


def other_names(answer, ground_truth):
    return 0.5


def swapped(ground_truth, solution_str):
    return 0.5


def only_one(solution_str):
    return 0.5


def none_at_all():
    return 0.5


def without_a_default(solution_str, ground_truth, extra_info):
    return 0.5


@pytest.mark.parametrize("function", [two, three])
def test_good_signatures(function):
    assert type(osmosis_reward(function)("a", "b")) is float


@pytest.mark.parametrize("function", [other_names, swapped, only_one, none_at_all, without_a_default])
def test_a_wrong_signature_is_refused_at_once(function):
    with pytest.raises(TypeError, match=function.__name__):
        osmosis_reward(function)


def test_keywords_that_it_does_not_take_are_left_out():
    assert osmosis_reward(two)("a", "b", extra_info={"x": 1}, data_source="gsm8k") == 0.5
    assert osmosis_reward(three)("a", "b", extra_info=2, data_source="gsm8k") == 2.0


def test_keywords_reach_a_function_that_takes_all():
    @osmosis_reward
    def function(solution_str, ground_truth, **kwargs):
        return len(kwargs)

    assert function("a", "b", extra_info=None, data_source="gsm8k") == 2.0


def test_a_missing_argument_is_a_type_error():
    with pytest.raises(TypeError, match="ground_truth"):
        exact("4")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), None, "1.0", [1.0], 1j, {"reward": 1.0}, 10**400],
    ids=lambda value: repr(value)[:12],
)
def test_what_is_not_a_finite_number_is_refused(value):
    @osmosis_reward
    def function(solution_str, ground_truth):
        return value

    with pytest.raises(TypeError, match="function returned"):
        function("a", "b")


@pytest.mark.parametrize("value", [0, -2, 0.25, np.float64(0.5), np.float32(0.5), np.int64(3)], ids=repr)
def test_every_finite_number_is_a_reward(value):
    @osmosis_reward
    def function(solution_str, ground_truth):
        return value

    assert function("a", "b") == float(value)
    assert type(function("a", "b")) is float


def test_an_exception_passes():
    @osmosis_reward
    def function(solution_str, ground_truth):
        raise KeyError("answer")

    with pytest.raises(KeyError, match="answer"):
        function("a", "b")
