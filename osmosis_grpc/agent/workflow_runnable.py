"""The adapter that runs a workflow and then its grader as one rollout."""

import copy
import os
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.grader import Grader, GraderContext
from osmosis_grpc.agent.loop import AgentNameError, name_problem
from osmosis_grpc.agent.result_check import RunOutcome, invalid_result
from osmosis_grpc.agent.workflow import AgentWorkflow, AgentWorkflowContext
from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig, GraderConfig
from osmosis_grpc.types import RolloutRequest


class WorkflowRunnable:
    """A Runnable for a workflow class, its configuration, and optionally a grader class with its configuration."""

    lists_tools_without_request = True

    def __init__(
        self,
        workflow: type[AgentWorkflow[Any]],
        config: AgentWorkflowConfig | None = None,
        grader: type[Grader[Any]] | None = None,
        grader_config: GraderConfig | None = None,
    ) -> None:
        self.name = config.name if config is not None else workflow.__name__
        problem = name_problem(self.name)
        if problem:
            raise AgentNameError(problem[0], f"{workflow.__name__}: {problem[1]}")
        self.workflow, self.config, self.grader, self.grader_config = workflow, config, grader, grader_config
        self.source = workflow
        self.replayable = workflow.replayable

    def tools(self, request: RolloutRequest) -> None:
        """Return None: a workflow gives its tools with each chat."""

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the workflow, and then its grader. The result has the rewards of the samples."""
        request = context.request
        config = copy.deepcopy(self.config)
        messages = [dict(message) for message in request.messages]
        await self.workflow(config).run(AgentWorkflowContext(messages, config, request.metadata))
        samples = context.get_samples()
        if not samples:
            return invalid_result("the workflow has no sample: none of its agents asked the model")
        if self.grader is None:
            return RunOutcome(messages=None)
        for sample in samples.values():
            sample.label = request.label
        graded = GraderContext(
            request.label,
            samples,
            os.getcwd(),
            metadata=request.metadata,
            prompt=[dict(message) for message in request.messages],
            rollout_id=request.rollout_id,
        )
        await self.grader(self.grader_config).grade(graded)
        return RunOutcome(messages=None, sample_rewards=_rewards(graded.samples))

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Do nothing: tools() has reserved nothing."""


def _rewards(samples: Mapping[str, Any]) -> dict[str, float]:
    return {name: sample.reward for name, sample in samples.items() if sample.reward is not None}
