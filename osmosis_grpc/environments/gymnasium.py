"""Environments with Gymnasium's reset() and step(), whose observations are text or JSON.

Needs the extra `gymnasium`. The name is an id for gymnasium.make(), such as FrozenLake-v1 or package:Name-v0, or
MODULE:CLASS for a class that is not registered. A task is a seed. The option `system` is the system message. Options
that steps.py does not define are passed to the environment. With render_mode=ansi, the model sees the rendered text,
with coloured characters in brackets.

If the action space is Text, the whole reply is the action. Otherwise the action is the last JSON value of the reply.
"""

import importlib
import json
import re
from typing import Any

import numpy as np

from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import EnvironmentFault, EnvironmentTask, Score
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.environments.steps import NoActionError, Step, SteppedEnvironment
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import jsontext

try:
    import gymnasium as gym
except ImportError as error:
    raise MissingExtraError("an environment of Gymnasium", "gymnasium") from error

__all__ = ["Gymnasium"]

VALUE = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""An action in a reply: a flat list or object, or a number."""
COLOURED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", re.DOTALL)
ENDS = {4: 1, 5: 2}
"""The number of flags in a step's result that tell whether the episode has ended, by the length of the result."""


class Gymnasium(SteppedEnvironment):
    """One environment of Gymnasium."""

    distribution = "gymnasium"

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        system = self.options.pop("system", None)
        try:
            env = self._made()
        except Exception as error:
            raise ValueError(f"{self.name}: it cannot be made: {error or type(error).__name__}") from error
        text = f"You act in {spec.name}. {_how(env)}" if system is None else str(system)
        self.opening = ({"role": "system", "content": text},)
        env.close()

    def _made(self) -> Any:
        module, colon, name = self.spec.name.partition(":")
        if colon and (kind := getattr(importlib.import_module(module), name, None)) is not None:
            return kind(**self.options)
        return gym.make(self.spec.name, **self.options)

    def _opened(self, episode: Episode) -> Any:
        env = self._made()
        episode.close_with(env.close)
        return env

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Play until the environment terminates or truncates the episode."""
        env = await episode.call(self._opened, episode)

        async def step(action: Any) -> Step:
            result = await episode.call(env.step, action)
            if not isinstance(result, tuple) or len(result) not in ENDS:
                raise EnvironmentFault(f"step() returned {result!r:.80}, not (observation, reward, ..., info)")
            observation, reward, *ends, info = result
            news = await episode.call(_shown, env, observation)
            return Step(news, reward, bool(ends[0]), any(ends), info)

        began = await episode.call(env.reset, seed=task.data)
        news = await episode.call(_shown, env, began[0] if isinstance(began, tuple) else began)
        return await self.steps(episode, news, lambda text: _action(env, text), step)


def _shown(env: Any, observation: Any) -> str:
    if getattr(env, "render_mode", None) == "ansi":
        return COLOURED.sub(r"[\1]", str(env.render()))
    return observation if isinstance(observation, str) else jsontext.render(_plain(observation))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _how(env: Any) -> str:
    space = getattr(env, "action_space", None)
    if space is None or isinstance(space, gym.spaces.Text):
        return "Your whole reply is your next action."
    if isinstance(space, gym.spaces.Discrete):
        last = space.start + space.n - 1
        return f"End your reply with your next action: a whole number from {space.start} to {last}."
    return f"End your reply with your next action, as JSON, which is an element of {space}."


def _action(env: Any, text: str) -> Any:
    """Return the action of a reply. Raises NoActionError."""
    space = getattr(env, "action_space", None)
    if space is None or isinstance(space, gym.spaces.Text):
        action: Any = text
    else:
        try:
            value = json.loads(text if text[:1] in "[{" else VALUE.findall(text)[-1])
            action = value if isinstance(space, gym.spaces.Discrete) else space.from_jsonable([value])[0]
        except Exception as error:  # from_jsonable() raises whatever the wrong value causes
            raise NoActionError(f"That is no action. {_how(env)}") from error
    if space is not None and not space.contains(action):
        raise NoActionError(f"That is no action. {_how(env)}")
    return action
