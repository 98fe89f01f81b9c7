"""The search for an order of calls, over a register whose histories are known to have one or none."""

import itertools
import random

import pytest

from tests.simulation import linearizability
from tests.simulation.linearizability import NEVER, Call, Undecided, stuck_at


def register(state, call):
    """The specification of a register: a read returns what was written last."""
    if call.name == "write":
        return [call.argument]
    return [state] if call.ended == NEVER or call.result == state else []


def write(value, began, ended=NEVER):
    return Call("write", value, "OK", began, ended)


def read(value, began, ended):
    return Call("read", "", value, began, ended)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [write(1, 1, 2), read(1, 3, 4)],
        [write(1, 1, 9), read(0, 2, 3), read(1, 4, 5)],  # the write has its effect between the reads
        [write(1, 1), read(1, 2, 3), read(1, 4, 5)],  # a call without an answer has its effect
        [write(1, 1), read(0, 8, 9)],  # or none
        [write(1, 1, 9), write(2, 1, 9), read(2, 2, 3), read(1, 4, 5)],
        [write(0, 1, 9), write(1, 1, 2), read(0, 3, 4)],  # a call that could change nothing comes later
    ],
)
def test_an_order_is_found(calls):
    assert stuck_at(calls, 0, register) is None


@pytest.mark.parametrize(
    ("calls", "left"),
    [
        ([write(1, 1, 2), read(0, 3, 4)], "read"),  # an old value after the write was answered
        ([write(1, 1), read(1, 2, 3), read(0, 4, 5)], "read"),  # the effect of a call is not taken back
        ([read(1, 1, 2), write(1, 3, 4)], "read"),  # no call has its effect before it begins
        ([write(1, 1, 9), write(2, 1, 9), read(2, 2, 3), read(1, 4, 5), read(2, 6, 7)], "read"),
    ],
)
def test_no_order_is_found(calls, left):
    stuck = stuck_at(calls, 0, register)
    assert stuck
    assert left in [call.name for call in stuck]


def test_the_search_agrees_with_all_orders_tried_one_by_one():
    rng = random.Random(7)
    found = {True: 0, False: 0}
    for _ in range(400):
        calls = []
        for _ in range(rng.randint(1, 5)):
            began, length = rng.randint(0, 8), rng.choice([1, 3, 5, NEVER])
            value, kind = rng.randint(0, 2), rng.choice([write, read])
            if kind is read:
                length = min(length, 9)
            calls.append(kind(value, began, began + length))
        linearizable = any(
            fits(order)
            for size in range(len(calls) + 1)
            for order in itertools.permutations(calls, size)
            if all(call in order for call in calls if call.ended != NEVER)
        )
        assert (stuck_at(calls, 0, register) is None) == linearizable, calls
        found[linearizable] += 1
    assert min(found.values()) > 50


def test_many_equal_calls_without_an_answer_are_one_way():
    calls = [write(1, 1) for _ in range(10)] + [write(2, 1) for _ in range(10)]
    answers = [read(value, 2 * n, 2 * n + 1) for n, value in enumerate([1, 2] * 5, start=1)]
    assert stuck_at([*calls, *answers], 0, register) is None
    assert stuck_at([*calls, *answers, read(3, 900, 901)], 0, register) is not None


def fits(order):
    state = 0
    for index, call in enumerate(order):
        if any(later.ended < call.began for later in order[index + 1 :]):
            return False
        states = list(register(state, call))
        if not states:
            return False
        state = states[0]
    return True


def test_a_search_that_is_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(linearizability, "MAX_STEPS", 50)
    calls = [write(value, 1, 9) for value in range(8)] + [read(99, 2, 3)]
    with pytest.raises(Undecided, match="9 calls"):
        stuck_at(calls, 0, register)
