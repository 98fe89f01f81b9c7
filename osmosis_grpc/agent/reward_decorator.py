"""The decorator for reward functions."""

import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import Any

from osmosis_grpc.protocol.types.json_values import number_of

_EXPECTED = ("solution_str", "ground_truth")


class BadRewardError(ValueError):
    """A reward that is not a finite number."""

    def __init__(self, reward: object) -> None:
        super().__init__(f"the reward is {reprlib.repr(reward)}, not a finite number")
        self.reward = reward


def reward_of(value: object) -> float:
    """Return a reward as a float; a bool counts as 1 or 0. Raises BadRewardError unless it is a finite number."""
    number = number_of(value)
    if number is None:
        raise BadRewardError(value)
    return number


def osmosis_reward(function: Callable[..., Any]) -> Callable[..., float]:
    """Mark a reward function: (solution_str, ground_truth, extra_info=None, **kwargs) -> float.

    Raises TypeError for another signature. Each call returns the function's result as a float, and raises TypeError for
    a result that is not a finite number. Keyword arguments that the function does not accept are left out.
    """
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters]
    if tuple(names[:2]) != _EXPECTED:
        raise TypeError(f"{function.__name__}: the first parameters are solution_str and ground_truth, not {names[:2]}")
    if len(names) > 2 and names[2] == "extra_info" and parameters[2].default is inspect.Parameter.empty:
        raise TypeError(f"{function.__name__}: extra_info needs a default")
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> float:
        known = kwargs if takes_all else {key: value for key, value in kwargs.items() if key in names}
        reward = function(*args, **known)
        number = number_of(reward)
        if number is None:
            raise TypeError(f"{function.__name__} returned {reprlib.repr(reward)}, not a finite number")
        return number

    return checked
