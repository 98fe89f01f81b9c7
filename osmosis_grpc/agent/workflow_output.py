"""What a workflow can hand to its grader: its own messages, in place of those that the server has recorded.

Tokens are never taken from here. A trainer trains on the recorded chats.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from osmosis_grpc.agent.grader import RolloutSample


class AgentWorkflowOutput(BaseModel):
    """The result of a workflow's run(). It may also return the list of messages alone, or None."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    messages: list[dict[str, Any]] | None = None
    """What the grader gets as the messages of the only sample, in any format; None for the recorded ones."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Numbers about the sample. They go to the trainer in extra_fields."""
    info: dict[str, Any] = Field(default_factory=dict)
    """Anything for the author's own tests."""


class SampleSource(ABC):
    """Has the messages of the only sample. See RolloutContext.set_sample_source()."""

    @abstractmethod
    async def get_sample(self) -> RolloutSample:
        """Return the messages, after the workflow has ended."""


async def with_own_messages(
    returned: Any, source: SampleSource | None, samples: Mapping[str, RolloutSample]
) -> tuple[str, ...]:
    """Give the only sample the messages and metrics that the workflow returned, or else those of its source.

    Args:
        returned: What run() returned. A value of another type is ignored.
        source: The source that the workflow has set.
        samples: The samples with a reply of the policy.

    Returns:
        The names of the samples whose messages are the workflow's own.

    Raises:
        ValueError: There are several samples.
    """
    if isinstance(returned, list) and len(samples) == 1 and all(isinstance(each, dict) for each in returned):
        returned = AgentWorkflowOutput(messages=returned)
    if isinstance(returned, AgentWorkflowOutput):
        messages, metrics = returned.messages, returned.metrics
    elif source is not None:
        own = await source.get_sample()
        messages, metrics = own.messages, own.metrics
    else:
        return ()
    if len(samples) > 1:
        names = ", ".join(samples)
        raise ValueError(f"messages of the workflow are those of one sample, and this rollout has several: {names}")
    for sample in samples.values():
        sample.metrics.update(metrics)
        if messages is not None:
            sample.messages = list(messages)
    return tuple(samples) if messages is not None else ()
