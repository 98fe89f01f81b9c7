"""The base class of workflows, and the context of a workflow's run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from osmosis_grpc.agent.workflow_config import AgentWorkflowConfig

TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig)


class AgentWorkflowContext(Generic[TConfig]):
    """The input of one run of a workflow.

    Args:
        prompt: The messages to start from. The list belongs to the run, which may change it.
        config: The configuration of this run; None if the workflow has none.
        metadata: Any data from the trainer. The grader gets the same dict.
    """

    def __init__(
        self, prompt: Sequence[Any], config: TConfig | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.prompt: list[dict[str, Any]] = list(prompt)
        self.config = config
        self.metadata = metadata if isinstance(metadata, dict) else dict(metadata or {})


class AgentWorkflow(ABC, Generic[TConfig]):
    """An agent that runs one prompt. Each rollout has its own instance.

    The model calls of run() go over get_rollout_context(), for example those of OsmosisStrandsAgent. Each conversation
    of run() is a sample, which a Grader rewards.
    """

    replayable: ClassVar[bool] = False
    """Whether run asks the same chats when it runs again with the same replies. See RolloutAgentLoop.replayable."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config
        """The configuration of this rollout. It is the object in `ctx.config`."""

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        """Run the agent on `ctx.prompt`. The returned value is ignored. An exception fails the rollout."""
