"""Checks whether concurrent calls could have had their effects one after the other, each before its answer.

The search is that of Wing and Gong with the memory of Lowe: it takes one call after the other that no unfinished
earlier call has to precede, asks the sequential specification for the states that can follow, and remembers which calls
and which state were tried together. A call without an answer is tried only where it changes something. Equal calls
without an answer are tried in the order of their begins.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
"""The position of an answer that never came. Such a call can have its effect at any later time, or never."""
MAX_STEPS = 40_000
"""The most steps of one search. A rollout that needs more has too many calls at once for its history to be judged."""


class Undecided(Exception):
    """The search was given up, because too many calls overlap."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call, with the positions of its begin and its answer in the history."""

    name: str
    argument: Any
    result: Any
    """The answer; None if there was none."""
    began: float
    ended: float = NEVER

    def __str__(self) -> str:
        answer = self.result if self.ended != NEVER else "no answer"
        return f"[{self.began:g}, {self.ended:g}] {self.name}({self.argument}) -> {answer}"


Step = Callable[[Hashable, Call], Iterable[Hashable]]
"""A sequential specification: the states that can follow a state after a call. No state means that the call cannot come
there, or not with this answer."""


def stuck_at(calls: Sequence[Call], initial: Hashable, step: Step) -> list[Call] | None:
    """Returns None if an order exists. Otherwise the calls that remain after the longest order that was found.

    Raises Undecided after MAX_STEPS steps.
    """
    calls = sorted(calls, key=lambda call: (call.began, call.ended))
    everything = (1 << len(calls)) - 1
    needed = sum(1 << index for index, call in enumerate(calls) if call.ended != NEVER)
    twins = _twins(calls)
    seen: set[tuple[int, Hashable]] = set()
    waiting: list[tuple[int, Hashable]] = [(0, initial)]
    longest, steps = 0, 0
    while waiting:
        done, state = waiting.pop()
        if done & needed == needed:
            return None
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if (done & needed).bit_count() > (longest & needed).bit_count():
            longest = done
        left = [index for index in range(len(calls)) if not done >> index & 1]
        first_end = min((calls[index].ended for index in left), default=NEVER)
        next_states: list[tuple[int, Hashable]] = []
        for index in left:
            if calls[index].began > first_end:
                break
            if index in twins and not done >> twins[index] & 1:
                continue
            steps += 1
            if steps > MAX_STEPS:
                raise Undecided(f"{len(calls)} calls overlap too much")
            for following in step(state, calls[index]):
                if following != state or calls[index].ended != NEVER:  # else it is as if it had not come
                    next_states.append((done | 1 << index, following))
        waiting += reversed(next_states)
    return [calls[index] for index in range(len(calls)) if (everything & ~longest) >> index & 1]


def _twins(calls: Sequence[Call]) -> dict[int, int]:
    """Returns the index of the equal call before it, for each call without an answer that has one."""
    found: dict[int, int] = {}
    last: dict[tuple[str, Any], int] = {}
    for index, call in enumerate(calls):
        if call.ended == NEVER:
            key = call.name, call.argument
            if key in last:
                found[index] = last[key]
            last[key] = index
    return found
