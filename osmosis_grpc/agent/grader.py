"""The base class of graders, and the samples and the context that a grader gets."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypeVar

from osmosis_grpc.agent.reward_decorator import reward_of
from osmosis_grpc.agent.workflow import GraderConfig, WithArtifacts

TGraderConfig = TypeVar("TGraderConfig", bound=GraderConfig, default=GraderConfig)
MAIN = "main"
"""The name of a sample that has no other one."""


class RolloutSample(BaseModel):
    """One conversation of a rollout, as a grader gets it."""

    model_config = ConfigDict(validate_assignment=True)

    id: str = MAIN
    """The name of the sample: the name of the agent that made it."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """All messages in the format of the agent's library; without a registered agent, in OpenAI's format."""
    label: str | None = None
    reward: float | None = Field(default=None, allow_inf_nan=False)
    remove_sample: bool = False
    """Whether the trainer should not train on the sample. Such a sample needs no reward."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Numbers about the sample. They go to the trainer in extra_fields."""
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    """More data about the sample. They go to the trainer in extra_fields."""

    @field_validator("reward", mode="before")
    @classmethod
    def _finite(cls, reward: Any) -> Any:
        return None if reward is None else reward_of(reward)


class GraderContext(WithArtifacts):
    """The input of a grader, and the place for its rewards.

    Args:
        label: The reference answer; None if the request has none.
        samples: The samples by id, in the order in which they began.
        workspace_path: The folder in which the server was started; None outside of a server.
        metadata: The dict that the workflow got.
        prompt: The messages that the workflow got.
        rollout_id: The rollout.
        sample: The only sample, instead of `samples`.
        artifacts_dir: A folder for files of the rollout, or None. It is that of the workflow.
    """

    def __init__(
        self,
        label: str | None = None,
        samples: Mapping[str, RolloutSample] | None = None,
        workspace_path: str | os.PathLike[str] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        prompt: Sequence[Any] = (),
        rollout_id: str = "",
        sample: RolloutSample | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        self.label = label
        self.samples: dict[str, RolloutSample] = dict(samples or {})
        if sample is not None:
            self.samples[sample.id] = sample
        self._artifacts = artifacts_dir
        self.workspace_path = workspace_path
        self.metadata = metadata if isinstance(metadata, dict) else dict(metadata or {})
        self.prompt: list[dict[str, Any]] = list(prompt)
        self.rollout_id = rollout_id

    @property
    def project_path(self) -> str | os.PathLike[str] | None:
        """The later name of workspace_path."""
        return self.workspace_path

    @property
    def sample(self) -> RolloutSample | None:
        """The only sample; None without samples. Raises ValueError if there are several."""
        if len(self.samples) > 1:
            raise ValueError(f"there are several samples, {', '.join(self.samples)}: use ctx.samples[NAME]")
        return next(iter(self.samples.values()), None)

    def set_reward(self, reward: float) -> None:
        """Set the reward of the only sample. Setting it again replaces it.

        Args:
            reward: A finite number. An int or a bool becomes a float.

        Raises:
            ValueError: There is no sample, or there are several.
            BadRewardError: The reward is not a finite number. It is a ValueError.
        """
        sample = self.sample
        if sample is None:
            raise ValueError("there is no sample to reward")
        sample.reward = reward_of(reward)

    def get_samples(self) -> dict[str, RolloutSample]:
        """Return the samples by id."""
        return self.samples

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Set the reward of a sample. Setting it again replaces it.

        Args:
            sample_id: The name of the sample.
            reward: A finite number. An int or a bool becomes a float.

        Raises:
            ValueError: There is no such sample.
            BadRewardError: The reward is not a finite number. It is a ValueError.
        """
        if sample_id not in self.samples:
            raise ValueError(f"Sample {sample_id} not found; the samples are: {', '.join(self.samples) or 'none'}")
        self.samples[sample_id].reward = reward_of(reward)


class Grader(ABC, Generic[TGraderConfig]):
    """Rewards the samples of a workflow. Each rollout has its own instance.

    A grader that compares the rollouts of a group overrides grade_group(). For a rollout of a group, the server then
    calls grade_group() once for the whole group, and does not call grade().
    """

    def __init__(self, config: TGraderConfig | None = None) -> None:
        self.config = config
        """The configuration for the grader in the workflow's module."""

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> Any:
        """Set the reward of each sample with ctx.set_sample_reward(). An exception fails the rollout."""

    async def grade_group(self, contexts: Sequence[GraderContext]) -> Any:
        """Set the rewards of all samples of a group. `contexts` has one context for each rollout, in order of index.

        All rollouts of the group must run on this server. Each waits for the others, at most for its grader_timeout,
        which is by default the server's time limit for agents. A rollout that failed is not in `contexts`. An exception
        fails all rollouts of the group.
        """
        raise NotImplementedError
