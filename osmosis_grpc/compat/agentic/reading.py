"""The parts of a model's reply: thoughts, calls of tools, an answer, and calls that cannot be read."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that is neither an action nor an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a tool."""

    text: str
    """The call as the reply has it."""
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """The id that the model gave; empty for a call in a text."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An action that is no call of a tool."""

    text: str
    error: str
    """What is wrong with it."""
    call_id: str = ""
    name: str = ""
    """The name of the tool, if it can be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer."""

    text: str


Part = Thought | Call | Unreadable | Answer
