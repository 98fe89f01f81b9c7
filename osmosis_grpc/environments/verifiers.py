"""The tasksets of the library verifiers, played by its environments and harnesses. Needs the extra `verifiers`.

The name is the id of an installed taskset, such as gsm8k-v1. Options are the fields of verifiers' environment
configuration, with dots: agent.harness={"id":"null"} chooses the harness that only chats and calls tools, and
taskset.NAME=VALUE sets an option of the taskset. `tasks` limits the number of tasks; the default is 100 for an infinite
taskset, and otherwise all. Without agent.runtime, programs run as subprocesses of the server.

For each episode, verifiers runs a program, which sends its chats to the base URL of the rollout. The parts of the
reward are verifiers' weighted rewards and its metrics.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.environments.environment import TASKS, Environment
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.port import EnvironmentFault, EnvironmentTask, Score, place_in, position
from osmosis_grpc.environments.spec import EnvironmentSpec, nested
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import Message

try:
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config
except ImportError as error:
    raise MissingExtraError("an environment of verifiers", "verifiers") from error

__all__ = ["Verifiers"]

NO_KEY = "OSMOSIS_ROLLOUT_NO_SUCH_KEY"
"""The name of a variable that is not set, because the key of the rollout is sent in a header."""


STAGES = ("setup", "finalize", "scoring")
"""The stages of an episode in which verifiers sends no chats."""
TOO_LATE = {f"{stage}_timeout" for stage in STAGES}


class Verifiers(Environment):
    """One taskset of verifiers."""

    distribution = "verifiers"
    replayable = False  # its programs may do anything between two chats

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        limit = int(self.number("tasks", 0))
        self._config = nested({**self.options, "taskset.id": spec.name})
        try:
            taskset = self._made().taskset
            limit = limit or (0 if taskset.bounded else TASKS)
            self._tasks = list(itertools.islice(taskset, limit or None))
        except Exception as error:
            raise ValueError(f"{self.name}: it cannot be made: {error or type(error).__name__}") from error

    def _made(self, max_turns: int | None = None, own: Any = None) -> Any:
        """Make the environment. Stages without a time limit of their own get the option `seconds`."""
        config = resolve_env_config(self._config)
        changed = {}
        for name, agent in config:
            if isinstance(agent, vf.AgentConfig):
                free = [stage for stage in STAGES if not (getattr(agent.timeout, stage) or getattr(own, stage, None))]
                timeout = agent.timeout.model_copy(update=dict.fromkeys(free, self.seconds or None))
                local = {} if "runtime" in agent.model_fields_set else {"runtime": vf.SubprocessConfig()}
                given = {"timeout": timeout, "max_turns": agent.max_turns or max_turns, **local}
                changed[name] = agent.model_copy(update=given)
        return load_environment(config.model_copy(update=changed))

    def keys(self) -> Iterator[str]:
        """Yield the positions of the tasks."""
        return map(str, range(len(self._tasks)))

    def task(self, key: str) -> EnvironmentTask:
        """Return the task at a position. Its data is the task object of verifiers."""
        task = self._tasks[position(key, len(self._tasks))]
        answer = getattr(task.data, "answer", None)
        label = answer if isinstance(answer, str) else None
        return EnvironmentTask(key=key, messages=_prompt(task.data), label=label, data=task)

    async def play(self, task: EnvironmentTask, episode: Episode) -> Score:
        """Run an episode of verifiers, with the rollout's base URL as its model."""
        context, request = episode.context, episode.context.request
        if request.messages and list(request.messages) != list(task.messages):
            raise EnvironmentFault("verifiers begins the conversation: send the messages of its dataset, or none")
        env = await episode.call(self._made, request.max_turns, task.data.data.timeout)
        model = vf.ModelContext(
            model=request.agent_loop or self.name,
            client=vf.EvalClientConfig(
                base_url=context.chat_completions_url, headers={"x-api-key": context.api_key}, api_key_var=NO_KEY
            ),
            sampling=vf.SamplingConfig(**request.completion_params),
        )
        serving = contextlib.AsyncExitStack()
        episode.close_with(serving.aclose)
        await serving.enter_async_context(env.serving())
        played = await env.run_episode(task.data, model)
        traces, errors = played.traces, [*played.errors, *(error for trace in played.traces for error in trace.errors)]
        late = [trace.stop_condition for trace in traces if trace.stop_condition in TOO_LATE]
        if late:  # verifiers reports such an episode as ok, with the reward 0
            raise EnvironmentFault(f"{late[0].partition('_')[0]} did not end within its time limit")
        if errors or not played.ok:
            said = [f"{error.type}: {error.message}{place_in(error.traceback)}" for error in errors[-1:]]
            raise EnvironmentFault(*said or ["the episode failed"])
        if len(traces) != 1:
            raise EnvironmentFault(f"the episode has {len(traces)} agents; only one can be trained here")
        (trace,) = traces
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        parts |= {name: value for name, value in trace.metrics.items() if value is not None and name not in parts}
        reason = "max_turns" if trace.stop_condition == "max_turns" else "stop"
        return Score(reward=trace.reward, parts=parts, finish_reason=reason, facts={"ended": trace.stop_condition})


def _prompt(data: Any) -> list[Message]:
    system: list[Message] = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *(message_to_wire(message) for message in data.prompt or ())]
