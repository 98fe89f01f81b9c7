"""Plays an environment with a reset and steps: each reply is an action, and each step has a reward.

A reply without a valid action costs a turn, and the model is told what is wrong. Several such replies in a row end the
episode with the reward so far, not with a failure. So a model that has not learned the format yet still gets a reward.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.environments.environment import SeededEnvironment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import Score, finite
from osmosis_grpc.environments.spec import EnvironmentSpec

INVALID = 3
"""Default of the option `invalid`: this many replies in a row without a valid action end an episode."""


class NoActionError(ValueError):
    """A reply has no valid action. The text tells the model what an action is."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an action. `news` is what the model reads next."""

    news: str
    reward: Any
    terminated: bool
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class SteppedEnvironment(SeededEnvironment):
    """An environment with steps, and the options that all of them have.

    After `invalid` replies in a row without a valid action, an episode ends. With `truncate`, an episode that has not
    ended after `max_turns` ends with the reward so far instead of a failure. `parts` lists the keys of the last step's
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
        """Play to the end, and return a score with the sum of the steps' rewards.

        Args:
            episode: The episode.
            news: The first message of the environment.
            action_of: Parses a reply and returns its action. Raises NoActionError.
            step: Sends an action to the environment.
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
