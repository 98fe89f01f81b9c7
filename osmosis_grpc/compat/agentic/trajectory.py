"""The steps of a rollout, under the names of the Agentic Rollout Library: Trajectory, TrajectoryStep, StepType."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import loggable


class StepType(StrEnum):
    """The kind of a step."""

    OBSERVATION = "observation"
    THOUGHT = "thought"
    ACTION = "action"
    ACTION_RESULT = "action_result"
    FINAL_ANSWER = "final_answer"


class StopReason(StrEnum):
    """Why a trajectory ended. Only the first two reasons mean that it is completed."""

    FINAL_ANSWER = "final_answer"
    FINISH_TOOL = "finish_tool"
    MAX_STEPS = "max_steps"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 - a name of a reason
    """The budget of tokens is used up."""
    PARSE_ERRORS = "parse_errors"
    """Several replies in a row could not be read."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LLM_ERROR = "llm_error"
    """The model could not be asked."""
    ERROR = "error"
    """The agent, a tool that the agent needs, or the server failed."""


COMPLETED = frozenset({StopReason.FINAL_ANSWER, StopReason.FINISH_TOOL})

_TO_ROLE = {StepType.OBSERVATION: "user", StepType.ACTION_RESULT: "user"}


@dataclass(slots=True, kw_only=True)
class TrajectoryStep:
    """One step. If a reply of the model has several steps, its tokens are on the first of them."""

    step_type: StepType
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """`success` of a tool call, `error` with the text of its error, and `chat_number`, the chat of the step."""
    tool_name: str | None = None
    tool_args: dict[str, Any] | None = None
    tool_result: Any = None
    reward_score: float | None = None
    is_correct: bool | None = None
    log_probs: list[float] | None = None
    """One logprob for each sampled token of the reply; None if they are unknown."""
    attention_mask: list[int] | None = None
    """A 1 for each sampled token of the reply; None if the tokens are unknown."""
    token_ids: list[int] | None = None
    """The sampled tokens of the reply; None if the sampler did not return them."""
    call_id: str | None = None
    """The id of the tool call that the step is about."""
    timestamp: float | None = None
    """Unix seconds."""
    duration: float | None = None
    """The seconds that the model or the tool took."""
    index: int | None = None
    """The position in the trajectory, from 0. The trajectory sets it; None outside of one."""

    def __post_init__(self) -> None:
        self.step_type = _step_type(self.step_type)

    @property
    def failed(self) -> bool:
        """Whether the step reports an error."""
        return self.metadata.get("success") is False

    def to_message(self) -> dict[str, str]:
        """Return the step as a message: a user message for what the model reads, otherwise an assistant message."""
        return {"role": _TO_ROLE.get(self.step_type, "assistant"), "content": self.content}

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a dict of JSON values. Any other value becomes its repr."""
        return {each.name: loggable(getattr(self, each.name), objects=True) for each in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrajectoryStep":
        """Make a step from the dict of to_dict(). Only `step_type` and `content` are required.

        Raises InvalidArgument, which names the field.
        """
        return cls(**_known(cls, values, ("step_type", "content")))


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """The steps of one rollout, and how it ended."""

    request_id: str
    steps: list[TrajectoryStep] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    is_completed: bool = False
    final_reward: float | None = None
    total_tokens: int | None = None
    """The tokens of all prompts and replies, as the model counted them; None if it did not."""
    stop_reason: StopReason | None = None
    """None until the trajectory has ended."""
    error: str | None = None
    """Why the trajectory failed."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation exactly as the model got it, including the replies."""
    segments: list[dict[str, Any]] = field(default_factory=list)
    """The tokens to train on: `ids`, `mask` (1 for a sampled token) and `logprobs`, three lists of equal lengths.

    Empty if the model returned no tokens; `metadata["not_trainable"]` then has the reason."""

    def __post_init__(self) -> None:
        if self.stop_reason is not None:
            try:
                self.stop_reason = StopReason(self.stop_reason)
            except ValueError:
                raise InvalidArgument("stop_reason", f"{self.stop_reason!r} is none of {_listed(StopReason)}") from None
        self.set_steps(self.steps)

    def add_step(self, step: TrajectoryStep) -> None:
        """Append a step, and set its index."""
        step.index = len(self.steps)
        self.steps.append(step)

    def set_steps(self, steps: list[TrajectoryStep]) -> None:
        """Replace the steps, and set their indices."""
        self.steps = steps
        for index, step in enumerate(steps):
            step.index = index

    def get_final_response(self) -> str:
        """Return the last final answer, else the model's last text, else "". Steps that report errors are skipped."""
        for kinds in ((StepType.FINAL_ANSWER,), (StepType.THOUGHT, StepType.ACTION)):
            for step in reversed(self.steps):
                if step.step_type in kinds and not step.failed:
                    return step.content
        return ""

    def get_tool_calls(self) -> list[TrajectoryStep]:
        """Return the actions that name a tool, in their order."""
        return [step for step in self.steps if step.step_type is StepType.ACTION and step.tool_name]

    def get_malformed_calls(self) -> list[TrajectoryStep]:
        """Return the actions from which no tool call could be read."""
        return [step for step in self.steps if step.step_type is StepType.ACTION and not step.tool_name]

    def get_total_reward(self) -> float:
        """Return the sum of the rewards of the steps, without the final reward; 0.0 if no step has one."""
        return float(sum(step.reward_score for step in self.steps if step.reward_score is not None))

    def to_dict(self) -> dict[str, Any]:
        """Return the trajectory as a dict of JSON values."""
        values = {
            each.name: loggable(getattr(self, each.name), objects=True) for each in fields(self) if each.name != "steps"
        }
        return values | {"steps": [step.to_dict() for step in self.steps]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Trajectory":
        """Make a trajectory from the dict of to_dict(). Only `request_id` is required. Raises InvalidArgument."""
        known = _known(cls, values, ("request_id",))
        steps = known.pop("steps", None) or []
        if not isinstance(steps, list):
            raise InvalidArgument("steps", f"is a {type(steps).__name__}, not a list")
        return cls(**known, steps=[TrajectoryStep.from_dict(step) for step in steps])


def _step_type(value: Any) -> StepType:
    try:
        return StepType(value)
    except ValueError:
        raise InvalidArgument("step_type", f"{value!r} is none of {_listed(StepType)}") from None


def _listed(kind: type[StrEnum]) -> str:
    return ", ".join(member.value for member in kind)


def _known(cls: Any, values: Any, required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise InvalidArgument(cls.__name__, f"is a {type(values).__name__}, not an object")
    names = [each.name for each in fields(cls)]
    for name in values:
        if name not in names:
            raise InvalidArgument(str(name), f"is not a field of a {cls.__name__}; the fields are {', '.join(names)}")
    for name in required:
        if name not in values:
            raise InvalidArgument(name, f"is missing in a {cls.__name__}")
    empty: dict[str, Any] = {"metadata": {}, "messages": [], "segments": []}
    return {name: empty.get(name) if value is None else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of trajectories. A value that is not known is None."""

    trajectories: int
    completed: int
    steps: dict[str, int]
    """The number of steps by type."""
    tool_calls: dict[str, int]
    """The number of calls by tool."""
    malformed_calls: int
    tool_success_rate: float | None
    """The fraction of the tool results that are not errors, 0 to 1."""
    tokens: int | None
    """The tokens of all chats; None if a trajectory does not know its tokens."""
    latency_p50: float | None
    """The median of the seconds that a reply took."""
    latency_p95: float | None
    reward_mean: float | None
    """The mean of the final rewards that are set."""
    reward_std: float | None
    """The population standard deviation of the final rewards."""
    rewarded: int
    """The number of trajectories with a final reward."""
    stop_reasons: dict[str, int]

    def __str__(self) -> str:
        rate = "" if self.tool_success_rate is None else f"; {self.tool_success_rate:.0%} of the results are no errors"
        malformed = f"; {self.malformed_calls} malformed" if self.malformed_calls else ""
        lines = [
            f"{self.trajectories} trajectories, {self.completed} completed",
            f"ends: {_counts(self.stop_reasons)}",
            f"steps: {_counts(self.steps)}",
            f"tool calls: {_counts(self.tool_calls)}{rate}{malformed}",
        ]
        if self.reward_mean is not None:
            lines.append(f"reward: mean {self.reward_mean:.4g}, deviation {self.reward_std:.4g}, of {self.rewarded}")
        if self.latency_p50 is not None:
            lines.append(f"seconds for a reply: median {self.latency_p50:.3g}, p95 {self.latency_p95:.3g}")
        return "\n".join([*lines, f"tokens: {'unknown' if self.tokens is None else self.tokens}"])


def statistics_of(trajectories: Trajectory | Iterable[Trajectory]) -> Statistics:
    """Return the statistics of a trajectory, or of several together."""
    made = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
    steps = [step for each in made for step in each.steps]
    results = [step for step in steps if step.step_type is StepType.ACTION_RESULT]
    latencies = sorted(
        step.duration for step in steps if step.duration is not None and step.step_type is not StepType.ACTION_RESULT
    )
    rewards = [each.final_reward for each in made if each.final_reward is not None]
    counted = [each.total_tokens for each in made]
    return Statistics(
        trajectories=len(made),
        completed=sum(each.is_completed for each in made),
        steps={kind.value: sum(step.step_type is kind for step in steps) for kind in StepType},
        tool_calls=dict(Counter(str(step.tool_name) for each in made for step in each.get_tool_calls())),
        malformed_calls=sum(len(each.get_malformed_calls()) for each in made),
        tool_success_rate=sum(not step.failed for step in results) / len(results) if results else None,
        tokens=sum(count for count in counted if count is not None) if made and None not in counted else None,
        latency_p50=percentile(latencies, 0.5),
        latency_p95=percentile(latencies, 0.95),
        reward_mean=statistics.fmean(rewards) if rewards else None,
        reward_std=statistics.pstdev(rewards) if rewards else None,
        rewarded=len(rewards),
        stop_reasons=dict(Counter(each.stop_reason.value for each in made if each.stop_reason is not None)),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the smallest value that at least the fraction `part` of the values does not exceed; None without any."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None
