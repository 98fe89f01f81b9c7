"""The samples of a recorded rollout, as its grader got them."""

from collections.abc import Callable, Iterable, Sequence

from osmosis_grpc.agent.rollout_scope import AGENT_REGISTERED
from osmosis_grpc.integrations.strands_messages import to_strands
from osmosis_grpc.protocol.types import Message, RolloutOutcome, TrajectoryEvent, events

NATIVE: dict[str, Callable[[Sequence[Message]], list[Message]]] = {"strands": to_strands}
"""The format of a library to the function that makes its messages of OpenAI's."""


def recorded_samples(outcome: RolloutOutcome, trajectory: Iterable[TrajectoryEvent]) -> dict[str, list[Message]]:
    """Return the messages of the samples by name, for grade_recorded().

    The messages of a registered agent are in the format of its library. A system prompt that the agent had apart from
    its messages is the first message.
    """
    formats = {
        event.kind.data.get("agent"): event.kind.data.get("format")
        for event in trajectory
        if isinstance(event.kind, events.Logged) and event.kind.name == AGENT_REGISTERED
    }
    native = {name: NATIVE.get(str(formats.get(name)), list) for name in outcome.samples}
    return {name: native[name](sample.messages) for name, sample in outcome.samples.items()}
