"""The port of environments: what an adapter implements. Nothing of a library passes it.

An environment has tasks, each with a key that stays the same while the library and the options do. The id of a task is
the environment's text and the key, joined by #. A rollout names its task with this id in its metadata, and is refused
if the server's environment has other options: its task 7 would be another one.

An episode is one play of one task. The adapter's play() gets an Episode, through which it asks the model and calls the
library, and returns a Score. Environment, the base class of the adapters, is the Runnable that the engine hosts: it
finds the task, checks the score, and names the environment in every failure.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.json_values import number_of

TASK_ID = "task_id"
"""The key of a task's id in the metadata of a request, and its column in a dataset."""


class EnvironmentFault(Exception):
    """Something that an environment did wrong. The text says what, without the environment's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTask:
    """One task of an environment."""

    key: str
    """Its name in the environment. It stays the same."""
    messages: Sequence[Message] = ()
    """The conversation to start from. Empty if the environment speaks first."""
    label: str | None = None
    """The reference answer, if the library has one that is a text."""
    data: Any = None
    """What the adapter needs to play it. It is not sent anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What an episode was worth. The values are the library's own; Environment checks that they are numbers."""

    reward: Any = None
    """The reward of the whole rollout. None if only the samples have rewards."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The named parts of the reward. They explain it, and are not added to it."""
    samples: Mapping[str, Any] = field(default_factory=dict)
    """The rewards of the samples, for an episode with several players."""
    finish_reason: str = "stop"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More about the end, as JSON. The trainer gets it as `extra_fields`."""


def finite(what: str, value: Any) -> float:
    """Return a number that an environment gave. Raises EnvironmentFault for NaN, a list, or anything else."""
    number = number_of(value)
    if number is None:
        raise EnvironmentFault(f"its {what} is {reprlib.repr(value)}, not a finite number")
    return number


def position(key: str, count: int) -> int:
    """Return the position that a key names. Raises LookupError if there is none below `count`."""
    if not (key.isascii() and key.isdecimal()) or int(key) >= count:
        raise LookupError(key)
    return int(key)
