"""A rollout to export: its outcome, and what only its server or its journal knows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types import Fork, Message, RolloutOutcome, ToolDict
from osmosis_grpc.protocol.types.trainable import Outcomes, flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout:
    """An outcome with the facts that are not in it. All of them may be absent."""

    outcome: RolloutOutcome
    agent_loop: str = ""
    """The name of the agent loop."""
    tools: Sequence[ToolDict] = ()
    """The tools that the agent loop listed for the request."""
    messages: Sequence[Message] = ()
    """The messages of the request."""
    label: str | None = None
    """The reference answer."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fork: Fork | None = None
    """The recorded chat from which the rollout forks; None if it is no fork."""
    accept_time: float | None = None
    """Unix seconds."""
    end_time: float | None = None
    """Unix seconds."""


def recorded(rollouts: Outcomes | Iterable[RecordedRollout]) -> Iterator[RecordedRollout]:
    """Yield a RecordedRollout for each outcome. A RecordedRollout is yielded as it is."""
    for each in rollouts:
        if isinstance(each, RecordedRollout):
            yield each
        else:
            for outcome in flatten([each]):
                yield RecordedRollout(outcome=outcome)


def facts(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the facts of an outcome that text formats show, as JSON. Absent facts are left out."""
    failure, group = outcome.failure, outcome.group
    made = {
        "rollout_id": outcome.rollout_id,
        "attempt": outcome.attempt,
        "status": str(outcome.status),
        "finish_reason": outcome.finish_reason or None,
        "failure": None
        if failure is None
        else {"boundary": failure.boundary, "reason": str(failure.reason), "message": failure.message},
        "reward": outcome.reward,
        "reward_components": dict(outcome.reward_components) or None,
        "group": None if group is None else {"id": group.id, "index": group.index, "size": group.size},
        "evaluation": outcome.evaluation or None,
        "agent_version": outcome.agent_version or None,
    }
    return {name: value for name, value in made.items() if value is not None}
