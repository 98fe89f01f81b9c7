"""Interactions react to a final answer, as a user would: they end the rollout, or send the agent back to work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message


@dataclass(frozen=True, slots=True)
class Reaction:
    """The reaction to an answer."""

    message: str | None = None
    """What the agent gets as a user message, and goes on with; None if nothing is left to do."""
    reward: float | None = None
    """A reward, which is added to the rollout's reward; None for no reward."""


class Interaction(Protocol):
    """Something that reacts to answers. One instance serves all rollouts at once."""

    async def respond(self, messages: Sequence[Message], answer: str) -> Reaction:
        """Return the reaction to an answer. `messages` is the conversation, the answer included."""


class CheckAnswer:
    """Compares the answer with the expected one. A wrong answer gets a hint, at most `tries` times."""

    def __init__(self, expected: str, hint: str = "That is not right. Try again.", tries: int = 1) -> None:
        self._expected, self._hint, self._tries = expected.strip(), hint, tries

    async def respond(self, messages: Sequence[Message], answer: str) -> Reaction:
        """Return the reward 1.0 for the expected answer, a hint, or the reward 0.0 when no try is left."""
        if answer.strip() == self._expected:
            return Reaction(reward=1.0)
        hints = sum(message.get("role") == "user" and message.get("content") == self._hint for message in messages)
        return Reaction(message=self._hint) if hints < self._tries else Reaction(reward=0.0)


_kinds: dict[str, Callable[..., Interaction]] = {"check_answer": CheckAnswer}


def register_interaction(name: str, make: Callable[..., Interaction]) -> None:
    """Register a kind of interaction. `make` gets the options of the configuration.

    Raises ValueError for a name that is registered.
    """
    if name in _kinds:
        raise ValueError(f"name: the interaction {name!r} is registered already")
    _kinds[name] = make


def make_interactions(config: Mapping[str, Any] | None) -> dict[str, Interaction]:
    """Make the interactions of a configuration: name to options.

    Raises InvalidArgument, which names the interaction.
    """
    made = {}
    for name, options in (config or {}).items():
        field = f"interactions_config.{name}"
        if name not in _kinds:
            raise InvalidArgument(field, f"is not an interaction; the interactions are {', '.join(sorted(_kinds))}")
        if not isinstance(options, Mapping):
            raise InvalidArgument(field, f"is a {type(options).__name__}, not an object of options")
        try:
            made[name] = _kinds[name](**options)
        except TypeError as error:
            raise InvalidArgument(field, str(error)) from None
    return made
