"""The types between Environment and the adapters of libraries. No type of a library appears in them.

An environment has tasks. The key of a task stays the same as long as the library and the options do. The id of a task
is SPEC#KEY: the text of the environment's spec, and the key. A rollout names its task by this id in its metadata. It is
refused if the server's environment has other options, because the same key would then name another task.

An episode is one play of one task. The adapter's play() gets an Episode, with which it asks the model and calls the
library, and returns a Score. Environment, the base class of the adapters, is the Runnable that the engine hosts: it
finds the task, checks the score, and names the environment in every failure.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.stack_frames import is_installed, is_own, short_path

TASK_ID = "task_id"
"""The name of a task's id: the key in the metadata of a request, and the column of a dataset."""


class EnvironmentFault(Exception):
    """An environment misbehaved. The text says how, without the environment's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentTask:
    """One task of an environment."""

    key: str
    """The name of the task in the environment. It stays the same."""
    messages: Sequence[Message] = ()
    """The conversation to start from. Empty if the environment speaks first."""
    label: str | None = None
    """The reference answer, if the library has one that is a text."""
    data: Any = None
    """Data of the adapter for play(). It stays in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of an episode. The values come from the library; Environment checks that they are numbers."""

    reward: Any = None
    """The reward of the whole rollout. None if only the samples have rewards."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The named parts of the reward. They explain the reward, and are not added to it."""
    samples: Mapping[str, Any] = field(default_factory=dict)
    """The reward of each sample, for an episode with several players."""
    finish_reason: str = "stop"
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More about the episode, as JSON. The trainer gets it as `extra_fields`."""


def finite(what: str, value: Any) -> float:
    """Return an environment's value as a float. Raises EnvironmentFault if it is no finite number."""
    number = number_of(value)
    if number is None:
        raise EnvironmentFault(f"its {what} is {reprlib.repr(value)}, not a finite number")
    return number


def place_in(trace: str | None) -> str:
    """Return the user's own last line in the text of a traceback, as " (at FILE:LINE)"; empty if there is none."""
    lines = re.findall(r'^ *File "(.*)", line (\d+)', trace or "", re.MULTILINE)
    own = [(file, line) for file, line in lines if is_own(file) and not is_installed(file)]
    return f" (at {short_path(own[-1][0])}:{own[-1][1]})" if own else ""


def position(key: str, count: int) -> int:
    """Return a key as a position from 0 to `count` - 1. Raises LookupError for any other key."""
    if not (key.isascii() and key.isdecimal()) or int(key) >= count:
        raise LookupError(key)
    return int(key)
