"""The adapter that runs a workflow and then its grader as one rollout."""

import asyncio
import contextlib
import copy
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.grader import Grader, RolloutSample
from osmosis_grpc.agent.grader_groups import Groups
from osmosis_grpc.agent.grading import graded, grader_context
from osmosis_grpc.agent.loop import AgentNameError, name_problem
from osmosis_grpc.agent.ports import current_session
from osmosis_grpc.agent.request import refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome, invalid_result
from osmosis_grpc.agent.sync_waits import with_sync_waits
from osmosis_grpc.agent.workflow import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    BaseConfig,
    ConfigValueError,
    GraderConfig,
    built,
    config_class,
    overlaid,
)
from osmosis_grpc.agent.workflow_output import with_own_messages
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.protocol.types.json_values import loggable
from osmosis_grpc.protocol.types.outcome import describe

METADATA = "spec.metadata_json"
"""The field of an Init that errors about the metadata name."""
CONFIG_KEY = "workflow_config"
"""The key of a request's metadata with values for the configuration of this rollout."""

GRADER_CONFIG_KEY = "grader_config"
"""The key of a request's metadata with values for the configuration of this rollout's grader."""
GRADE_KEY = "run_grader"
"""The key of a request's metadata that is False if the grader does not run."""
ARTIFACTS = "artifacts"
"""The folder of `ctx.artifacts_dir` in that of the rollout."""
NATIVE_KEY = "native_messages"
"""The key of the outcome's extra_fields with the messages of registered agents in the format of their library.

Only trainers that speak HTTP get them, because the Osmosis SDK's result has them.
"""


class WorkflowRunnable:
    """A workflow and its grader as an agent, for run_rollout() and for servers.

    Args:
        workflow: The class of the workflow.
        config: Its configuration. Each rollout gets a copy.
        grader: The class of the grader; without one, nothing rewards the samples.
        grader_config: The configuration of the grader.

    Raises:
        AgentNameError: The configuration, or else the class, has no name that trainers can use.
        TypeError: `workflow` is not the class of a workflow.
    """

    lists_tools_without_request = True

    def __init__(
        self,
        workflow: type[AgentWorkflow[Any]],
        config: AgentWorkflowConfig | None = None,
        grader: type[Grader[Any]] | None = None,
        grader_config: GraderConfig | None = None,
    ) -> None:
        _check_class(workflow)
        self.name = (config.name.strip() if config is not None else "") or workflow.__name__
        problem = name_problem(self.name)
        if problem:
            raise AgentNameError(problem[0], f"{workflow.__name__}: {problem[1]}")
        self.source = self.workflow = workflow
        self.config, self.grader, self.grader_config = config, grader, grader_config
        self.replayable = workflow.replayable
        self._folder = _current_folder()
        self.groups = Groups()
        self._grades_groups = grader is not None and grader.grade_group is not Grader.grade_group
        self._slots: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        """How many graders may still run at once, by event loop."""

    @property
    def max_concurrent(self) -> int | None:
        """The most rollouts of this workflow that run at once; None for no limit besides the server's."""
        return None if self.config is None else self.config.concurrency.max_concurrent

    def tools(self, request: RolloutRequest) -> None:
        """Check the request's configuration. Return None, because a workflow gives its tools with each chat.

        Raises InvalidArgument for values that do not fit the configuration, and for a grader's time limit without a
        grader.
        """
        if self.grader is None:
            refuse_grader_timeout(self.name, request)
        if CONFIG_KEY in request.metadata:
            self._config(request)
        if GRADER_CONFIG_KEY in request.metadata:
            self._config_of_grader(request)

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Note the group of a rollout that is going to run.

        Args:
            request: The request of the rollout.
            owner: The trainer to which it belongs.
        """
        if self._grades_groups:
            self.groups.accepted(request, owner)

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the workflow, and then its grader. The result has the rewards of the samples."""
        request, session = context.request, current_session.get()
        assert session is not None
        if self._grades_groups and self.groups.has(request):
            self.groups.ended_before(request, await session.ended_before())
        config = self._config(request)
        prompt = copy.deepcopy([dict(message) for message in request.messages])
        workflow = self.workflow(config)
        own = session.folders().own
        artifacts = None if own is None else own / ARTIFACTS
        returned = await with_sync_waits(
            workflow.run(AgentWorkflowContext(prompt, config, request.metadata, artifacts))
        )
        session.begin_grading()
        samples = context.get_samples()
        samples = {name: sample for name, sample in samples.items() if session.sample_messages(name) is not None}
        if not samples:
            return invalid_result("the workflow has no sample: none of its agents got a reply of the policy")
        try:
            native = {*context.registered_agents, *await with_own_messages(returned, context.sample_source, samples)}
        except ValueError as error:
            return invalid_result(str(error))
        if self.grader is None or request.metadata.get(GRADE_KEY) is False:
            return _with_native(RunOutcome(messages=None), context, samples, native)
        if request.label is None and not request.metadata:
            why = "the request has no label and no metadata, so the grader did not run"
            return _with_native(RunOutcome(messages=None, extra_fields={"grading": why}), context, samples, native)
        graded_context = grader_context(request, samples, self._folder, artifacts)
        with context.for_grader() as judge:
            if self._grades_groups and self.groups.has(request):
                work = self.groups.grade(
                    request, graded_context, partial(self._grade, request, "grade_group"), session.waiting
                )
            else:
                work = self._grade(request, "grade", graded_context)
            outcome = (await graded(work, graded_context)).apply(judge)
            return _with_native(outcome, context, samples, native)

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Let the other rollouts of the group no longer wait for this one.

        Args:
            rollout_id: The rollout.
            attempt: Its attempt, from 1.
        """
        self.groups.ended(rollout_id, attempt)

    async def _grade(self, request: RolloutRequest, method: str, contexts: Any) -> None:
        assert self.grader is not None
        most = None if self.grader_config is None else self.grader_config.concurrency.max_concurrent
        async with contextlib.AsyncExitStack() as stack:
            if most is not None:
                slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(most))
                await stack.enter_async_context(slots)
            grade = getattr(self.grader(self._config_of_grader(request)), method)
            await with_sync_waits(grade(contexts))

    def _copied(self) -> AgentWorkflowConfig | None:
        try:
            return copy.deepcopy(self.config)
        except Exception as error:
            why = f"the configuration of {self.name} cannot be copied, and each rollout needs a copy"
            raise TypeError(f"{why}: {describe(error)}") from error

    def _config(self, request: RolloutRequest) -> BaseConfig | None:
        config = self._copied()
        given = request.metadata.get(CONFIG_KEY)
        cls = config_class(self.workflow, AgentWorkflow)
        return config if given is None else _with_values(config, cls, given, CONFIG_KEY, f"the workflow {self.name}")

    def _config_of_grader(self, request: RolloutRequest) -> Any:
        given = request.metadata.get(GRADER_CONFIG_KEY)
        if given is None:
            return self.grader_config
        if self.grader is None:
            raise InvalidArgument(f"{METADATA}.{GRADER_CONFIG_KEY}", f"the workflow {self.name} has no grader")
        cls, owner = config_class(self.grader, Grader), f"the grader {self.grader.__name__}"
        return _with_values(self.grader_config, cls, given, GRADER_CONFIG_KEY, owner)


def _with_values(config: Any, cls: type[BaseConfig] | None, given: Any, key: str, owner: str) -> BaseConfig:
    """Return a configuration with the values of a request; without one, make one of the class `cls`.

    Raises InvalidArgument, which names the key of the metadata.
    """
    field = f"{METADATA}.{key}"
    if not isinstance(given, Mapping):
        raise InvalidArgument(field, f"is a {type(given).__name__}, not an object")
    if config is None and cls is None:
        raise InvalidArgument(field, f"{owner} has no configuration")
    try:
        made: BaseConfig = (
            overlaid(config, given, field) if cls is None or config is not None else built(cls, given, field)
        )
    except ConfigValueError as error:
        name, problem = next(iter(error.problems.items()))
        raise InvalidArgument(f"{field}.{name}", problem) from None
    return made


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted
        return None


def _check_class(workflow: object) -> None:
    if not isinstance(workflow, type) or not issubclass(workflow, AgentWorkflow):
        what = workflow.__name__ if isinstance(workflow, type) else f"a {type(workflow).__name__}"
        raise TypeError(f"{what} is not the class of a workflow; of an agent loop, give an instance")


def _with_native(
    outcome: RunOutcome, context: RolloutContext, samples: Mapping[str, RolloutSample], names: Collection[str]
) -> RunOutcome:
    """Add the messages of the samples that are not in OpenAI's format, if the trainer speaks HTTP."""
    if not context.request.server_url:
        return outcome
    native = {name: loggable(samples[name].messages) for name in samples if name in names}
    return replace(outcome, extra_fields={**(outcome.extra_fields or {}), NATIVE_KEY: native}) if native else outcome
