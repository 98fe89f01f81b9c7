"""Plays an environment that has a reset and steps: each reply is an action, and each step has a reward.

A reply that is no action costs a turn, and the model is told so. Several in a row end the episode, so that a model that
has not learned the form yet gets the reward of what it did, and not a failure.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.environments.environment import SeededEnvironment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import Score, finite
from osmosis_grpc.environments.spec import EnvironmentSpec

INVALID = 3
"""How many replies in a row without an action end an episode, if the option `invalid` says nothing else."""


class NoActionError(ValueError):
    """A reply has no action. The text tells the model what an action is."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answers to an action."""

    news: str
    reward: Any
    terminated: bool
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class SteppedEnvironment(SeededEnvironment):
    """The options that all environments with steps have.

    `invalid` is the number of replies in a row without an action that end an episode. With `truncate`, an episode that
    has not ended after `max_turns` gets the reward so far, and not a failure. `parts` lists keys of the last step's
    info that become parts of the reward.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        self._invalid = self.number("invalid", INVALID)
        self._truncate = bool(self.options.pop("truncate", False))
        self._parts: Sequence[str] = self.options.pop("parts", [])

    async def steps(
        self, episode: Episode, news: str, action_of: Callable[[str], Any], step: Callable[[Any], Awaitable[Step]]
    ) -> Score:
        """Play to the end, and return the sum of the rewards.

        Args:
            episode: The episode.
            news: What the environment says first.
            action_of: Returns the action of a reply. Raises NoActionError.
            step: Takes an action.
        """
        total, count, invalid, in_a_row, info, reason = 0.0, 0, 0, 0, dict[str, Any](), ""
        while not reason:
            if self._truncate and episode.turns >= episode.max_turns:
                reason = "max_turns"
                break
            reply = await episode.ask(news)
            try:
                action = action_of(str(reply.content or ""))
            except NoActionError as problem:
                invalid, in_a_row, news = invalid + 1, in_a_row + 1, str(problem)
                reason = "invalid_action" if in_a_row >= self._invalid else ""
                continue
            made = await step(action)
            count, in_a_row, news, info = count + 1, 0, made.news, dict(made.info)
            total += finite(f"reward of step {count}", made.reward)
            reason = "stop" if made.terminated else "truncated" if made.truncated else ""
        parts = {"steps": count, "invalid_actions": invalid, **{key: info[key] for key in self._parts if key in info}}
        return Score(reward=total, parts=parts, finish_reason=reason, facts={"last_observation": news})
