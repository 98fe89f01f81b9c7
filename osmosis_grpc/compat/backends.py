"""The Osmosis SDK's backends, which create_rollout_server() serves. A backend says which agent runs, and where."""

import importlib
import os
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.workflow import AgentWorkflow, AgentWorkflowConfig, GraderConfig
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.protocol.types import RolloutRequest, requests

DEFAULT_CONCURRENCY = 4
"""How many rollouts run at once if the workflow has no configuration."""
TASK_KEY = "harbor_task_id"
"""The metadata key in which Harbor's trainers name a task. This package's key is `task`."""


def found(given: Any) -> Any:
    """Return the object that a text such as "module:attribute" names. Any other value is returned as it is.

    Raises ValueError and ImportError.
    """
    if not isinstance(given, str):
        return given
    module, colon, attribute = given.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"{given!r} is not module:attribute")
    value = getattr(importlib.import_module(module), attribute, None)
    if value is None:
        raise ImportError(f"the module {module} has no {attribute}", name=module)
    return value


class ExecutionBackend:
    """The base of both backends. You cannot serve your own backend; write your agent as a RolloutAgentLoop."""

    name: str
    """The name of the agent."""
    max_concurrent: int | None = DEFAULT_CONCURRENCY
    """The most rollouts at once; None for the server's limit."""

    def open(self) -> Any:
        """Return an async context manager that yields the agent."""
        raise TypeError(
            f"{type(self).__name__} cannot be served as a backend: write its agent as a RolloutAgentLoop, served with "
            "create_app(agent_loop) or osmosis-grpc serve -m MODULE:ATTR"
        )

    async def execute(self, request: Any) -> NoReturn:
        """Raise NotImplementedError, with what to use in a test: only a server runs rollouts on a backend."""
        raise NotImplementedError(
            "a backend runs rollouts of a server only: run the workflow in a test with "
            "osmosis_grpc.testing.run_rollout(backend.agent, policy)"
        )


class LocalBackend(ExecutionBackend):
    """Runs a workflow and its grader in the server's process.

    Args:
        workflow: The class of the workflow, or a text "module:Class" that names it.
        workflow_config: Its configuration, or a text that names it. Without one, four rollouts run at once.
        grader: The class of the grader, or a text that names it.
        grader_config: Its configuration, or a text that names it.

    Raises:
        ValueError: A text is not "module:attribute".
        ImportError: A text names nothing that exists.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader[Any]] | str | None = None,
        grader_config: GraderConfig | str | None = None,
    ) -> None:
        config = found(workflow_config)
        self.agent = WorkflowRunnable(found(workflow), config, found(grader), found(grader_config))
        """The agent, for run_rollout() and for AgentServer."""
        self.name = self.agent.name
        if config is not None:
            self.max_concurrent = config.concurrency.max_concurrent

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runnable]:
        """Yield the agent."""
        yield self.agent


class TaskMode(StrEnum):
    """How Harbor makes tasks. This package supports DATASET only: each task is a folder."""

    DATASET = "dataset"
    TEMPLATE = "template"


_UNUSED = (
    "orchestrator cleanup_successful_trials trials_dir prewarm patch_dockerfile_with_sdk agent_setup_timeout_sec "
    "max_queue_depth verified_tasks model_name"
)
"""Options of Harbor for running its trials. They have no effect: a server has its own queue and boxes."""
_INSTEAD = {
    "environment_config": "describe the box in `box`, for example box={'mounts': {...}} (docs/boxes.md)",
    "native_agent_kwargs": "write the program's options in a file for `agent`, as of osmosis-grpc serve --program FILE",
    "workflow_config": "an agent is a program in the box of its task; for a workflow use LocalBackend",
    "grader": "the tests of a task decide on its reward",
    "grader_config": "the tests of a task decide on its reward",
    "code_dir": "mount the folder: box={'mounts': {...}} (docs/boxes.md)",
    "bundle": "mount the folder: box={'mounts': {...}} (docs/boxes.md)",
}


class HarborBackend(ExecutionBackend):
    """Runs a program in the box of a Harbor task, and then the tests of the task, which give the reward.

    The trainer names the task in the metadata of its request: `{"task": NAME}` or `{"harbor_task_id": NAME}`. Needs the
    extra `docker`.

    Args:
        tasks_dir: The folder of the tasks.
        agent: A preset such as "claude-code", the path of a .toml file for serve --program, or a command.
        task_mode: Must be TaskMode.DATASET.
        box: Fields of the box, as in the table [box] of a .toml file for serve --program.
        **harbor: Options of Harbor. Those about its queue have no effect; others are refused.

    Raises:
        TypeError: An option is refused. The message says what to write instead.
    """

    def __init__(
        self,
        *,
        tasks_dir: Path | str,
        agent: str | None = None,
        task_mode: TaskMode | str = TaskMode.DATASET,
        box: Mapping[str, Any] | None = None,
        **harbor: Any,
    ) -> None:
        for option, value in harbor.items():
            if option not in _UNUSED.split() and option not in _INSTEAD:
                raise TypeError(f"HarborBackend() has no option {option!r}")
            if option in _INSTEAD and value is not None:
                raise TypeError(f"{option}: {_INSTEAD[option]}")
        if not isinstance(agent, str) or not agent:
            raise TypeError(
                "agent: name a program, for example claude-code, or a command; for a workflow use LocalBackend"
            )
        if TaskMode(task_mode) is not TaskMode.DATASET:
            raise TypeError("task_mode: each task is a folder with its own files; write TaskMode.DATASET")
        self.tasks_dir = Path(tasks_dir)
        self._program, self._box = agent, dict(box or {})
        self.name = Path(agent).stem if agent.endswith(".toml") else agent.split()[0]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Runnable]:
        """Yield the agent, and serve its base URLs and boxes meanwhile. Raises ValueError and SandboxError."""
        from osmosis_grpc.endpoints.hosted_programs import command_agents
        from osmosis_grpc.endpoints.programs import Program, load_program, preset_names

        known = self._program.endswith(".toml") or self._program in preset_names()
        program = load_program(self._program) if known else Program(command=tuple(shlex.split(self._program)))
        program = replace(program, box={**program.box, **self._box})
        server_id = f"harbor-{os.getpid()}"
        async with command_agents([program], [self.name], {}, server_id=server_id, tasks=self.tasks_dir) as (agents, _):
            yield _TaskAgent(agents[0])


class _TaskAgent:
    """An agent that also finds its task in the metadata key of Harbor's trainers."""

    def __init__(self, agent: Runnable) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def tools(self, request: RolloutRequest) -> Any:
        """Return the agent's tools. Raises InvalidArgument if there is no such task."""
        return self._agent.tools(_with_task(request))

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the agent."""
        context.request = _with_task(context.request)
        return await self._agent.run(context)


def _with_task(request: Any) -> Any:
    named = request.metadata.get(TASK_KEY)
    if named is None or "task" in request.metadata:
        return request
    return requests.copy_of(request, type(request), metadata={**request.metadata, "task": named})
