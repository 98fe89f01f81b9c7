"""Environments of OpenEnv, on a server or in this process. Needs the extra `openenv`.

The name is the URL of a server, or MODULE:CLASS of an Environment class, which each episode instantiates. A task is a
seed for reset(). The options are `reset`, more arguments for reset(), `system`, the system message, and those of
steps.py.

The text of a reply goes to one field of the action. The option `action` names it; by default it is the only required
field, if that is a string. Without such a field, the action is the last line of the reply that is a JSON object.
"""

import contextlib
import json
import pkgutil
import urllib.request
from functools import partial
from typing import Any, get_type_hints

from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import EnvironmentTask, Score
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.environments.steps import NoActionError, Step, SteppedEnvironment
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.json_values import loggable

try:
    from openenv.core.client_types import StepResult
    from openenv.core.env_server.interfaces import Environment as EnvironmentOfOpenEnv
    from openenv.core.generic_client import GenericEnvClient
except ImportError as error:
    raise MissingExtraError("an environment of OpenEnv", "openenv") from error

__all__ = ["OpenEnv"]


class _Local:  # an environment in this process, with the methods of a client
    def __init__(self, env: Any, action: Any, episode: Episode) -> None:
        self._env, self._action, self._episode = env, action, episode

    async def reset(self, **options: Any) -> Any:
        return await self._made("reset", **options)

    async def step(self, fields: dict[str, Any]) -> Any:
        return await self._made("step", self._action.model_validate(fields))

    async def _made(self, name: str, *args: Any, **options: Any) -> Any:
        own, inherited = (getattr(kind, f"{name}_async") for kind in (type(self._env), EnvironmentOfOpenEnv))
        blocks, call = own is inherited, self._episode.call
        made = await (call(getattr(self._env, name), *args, **options) if blocks else own(self._env, *args, **options))
        return StepResult(made.model_dump(), made.reward, made.done, made.metadata)


class OpenEnv(SteppedEnvironment):
    """One environment of OpenEnv."""

    distribution = "openenv"

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        self._url, self._reset = spec.name if "://" in spec.name else "", self.options.pop("reset", {})
        field, system = self.options.pop("action", None), self.options.pop("system", None)
        try:
            schema = self._action_schema()
            if self._url and self.options:
                raise ValueError(f"a server takes no option {', '.join(sorted(self.options))}")
        except Exception as error:
            raise ValueError(f"{self.name}: it cannot be used: {error or type(error).__name__}") from error
        self._field = field or _only_text(schema)
        self._how = "Your whole reply is your next action."
        if not self._field:
            fields = json.dumps({name: each for name, each in schema["properties"].items() if name != "metadata"})
            self._how = f"End each reply with a line that is your next action, a JSON object with: {fields}"
        self.opening = ({"role": "system", "content": self._how if system is None else str(system)},)

    def _action_schema(self) -> dict[str, Any]:
        if self._url:
            with urllib.request.urlopen(f"{self._url.rstrip('/')}/schema", timeout=10) as answer:  # noqa: S310
                return json.load(answer)["action"]  # type: ignore[no-any-return]
        self._kind: Any = pkgutil.resolve_name(self.spec.name)
        self._action = get_type_hints(self._kind.step)["action"]
        return self._action.model_json_schema()  # type: ignore[no-any-return]

    def _opened(self, episode: Episode) -> Any:
        env = GenericEnvClient(self._url) if self._url else self._kind(**self.options)
        episode.close_with(partial(env.__aexit__, None, None, None) if self._url else env.close)  # as async
        return env if self._url else _Local(env, self._action, episode)

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Reset the environment with the seed, and play until it is done."""
        env: Any = await episode.call(self._opened, episode)
        began = await episode.wait(env.reset(seed=task.data, **self._reset), "reset()")

        async def step(action: Any) -> Step:
            made = await episode.wait(env.step(action), "step()")
            reward = 0.0 if made.reward is None and not made.done else made.reward
            return Step(_shown(made.observation), reward, bool(made.done), info=made.metadata or {})

        return await self.steps(episode, _shown(began.observation), self._fields, step)

    def _fields(self, text: str) -> dict[str, Any]:
        if self._field:
            return {self._field: text}
        for line in reversed(text.strip().split("\n")):
            with contextlib.suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    return found
        raise NoActionError(f"That is no action. {self._how}")


def _only_text(schema: dict[str, Any]) -> str:
    """Return the only required field of an action if it is a string, otherwise ""."""
    needed = schema.get("required", [])
    return needed[0] if len(needed) == 1 and schema["properties"][needed[0]].get("type") == "string" else ""


def _shown(observation: Any) -> str:
    if isinstance(observation, dict):
        observation = {name: value for name, value in observation.items() if name not in ("done", "reward", "metadata")}
        if len(observation) == 1 and isinstance(text := next(iter(observation.values())), str):
            return text
    return jsontext.render(loggable(observation))
