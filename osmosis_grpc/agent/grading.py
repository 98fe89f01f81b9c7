"""Runs a grader, and checks and applies its rewards."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.grader import Grader, GraderContext, RolloutSample
from osmosis_grpc.agent.import_hints import with_import_hint
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.agent.workflow import GraderConfig
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.protocol.types import Failure, FailureReason, Message, RolloutOutcome, RolloutRequest
from osmosis_grpc.protocol.types.json_values import loggable
from osmosis_grpc.protocol.types.outcome import clip

NOT_FROM_GRADERS = frozenset({"trainer", "server"})
"""The boundaries of failures that are not the grader's fault, for example of a judge's chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What a grader decided about one rollout."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    """Sample id to reward. Empty after a failure."""
    removed: tuple[str, ...] = ()
    """The samples on which the trainer should not train."""
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """The metrics and extra fields of the samples, as JSON."""
    failure: Failure | None = None

    @classmethod
    def of(cls, context: GraderContext) -> "Graded":
        """Return the rewards of a graded context. It fails if a sample has no reward and is not removed."""
        samples = context.samples
        removed = tuple(name for name, sample in samples.items() if sample.remove_sample)
        missing = [name for name, sample in samples.items() if sample.reward is None and not sample.remove_sample]
        if missing:
            why = f"after grading, there is no reward for the sample {', '.join(map(repr, missing))}"
            return cls.failed(why, FailureReason.GRADER_RESULT_INVALID)
        return cls(
            rewards={name: sample.reward for name, sample in samples.items() if sample.reward is not None},
            removed=removed,
            extra_fields=_telemetry(samples),
        )

    @classmethod
    def failed(cls, why: str, reason: FailureReason) -> "Graded":
        """Return the result of a grader that failed without an exception."""
        return cls(failure=Failure("grader", clip(why), False, reason=reason))

    def apply(self, context: RolloutContext) -> RunOutcome:
        """Set the rewards in a running rollout, and return the result of its run."""
        for name in self.removed:
            context.set_train(False, sample=name)
        for name, reward in self.rewards.items():
            context.set_reward(reward, sample=name)
        return RunOutcome(messages=None, failure=self.failure, extra_fields=self.extra_fields or None)


async def graded(work: Awaitable[Any], context: GraderContext) -> Graded:
    """Await the work of a grader, and return its result for one context. An exception becomes a failure.

    Raises RolloutEndedError and a cancellation.
    """
    try:
        await work
    except (asyncio.CancelledError, RolloutEndedError):
        raise
    except BaseException as error:  # the grader's code may raise anything
        return Graded(failure=grader_failure(error))
    return Graded.of(context)


def grader_failure(error: BaseException) -> Failure:
    """Return the failure for an exception of a grader."""
    failure = with_import_hint(Failure.of(error), error)
    if failure.boundary in NOT_FROM_GRADERS:
        return failure
    return replace(failure, boundary="grader", reason=FailureReason.GRADER_EXCEPTION)


def grader_context(
    request: RolloutRequest,
    samples: Mapping[str, RolloutSample],
    folder: str | None = None,
    artifacts: Path | None = None,
) -> GraderContext:
    """Return the context for grading a rollout. Each sample gets the label of the request."""
    for sample in samples.values():
        sample.label = request.label
    return GraderContext(
        request.label,
        samples,
        folder,
        metadata=request.metadata,
        prompt=[dict(message) for message in request.messages],
        rollout_id=request.rollout_id,
        artifacts_dir=artifacts,
    )


async def grade_recorded(
    grader: type[Grader[Any]],
    request: RolloutRequest,
    samples: RolloutOutcome | Mapping[str, Sequence[Message]],
    *,
    config: GraderConfig | None = None,
    timeout: float | None = None,
) -> Graded:
    """Grade a rollout that has ended, for example one of a journal. Nothing of the rollout is changed.

    get_rollout_context() is None in the grader, so a grader that needs the policy's model fails.

    Args:
        grader: The class of the grader.
        request: The request of the rollout.
        samples: The outcome of the rollout, or the messages of its samples by name, in OpenAI's format.
        config: The configuration of the grader.
        timeout: The most seconds.
    """
    if isinstance(samples, RolloutOutcome):
        samples = {name: sample.messages for name, sample in samples.samples.items()}
    if not samples:
        return Graded.failed("the rollout has no samples", FailureReason.GRADER_RESULT_INVALID)
    made = {name: RolloutSample(id=name, messages=list(messages)) for name, messages in samples.items()}
    context = grader_context(request, made)

    async def work() -> None:
        async with asyncio.timeout(timeout):
            await grader(config).grade(context)

    return await graded(work(), context)


def _telemetry(samples: Mapping[str, RolloutSample]) -> dict[str, Any]:
    """Return the metrics and extra fields of the samples. A value that is not JSON, such as NaN, becomes its repr."""
    rows: dict[str, Any] = {}
    for name, sample in samples.items():
        row = {"metrics": sample.metrics, "extra_fields": sample.extra_fields}
        if any(row.values()):
            rows[name] = loggable({key: value for key, value in row.items() if value}, objects=True)
    return {"samples": rows} if rows else {}
