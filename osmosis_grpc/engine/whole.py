"""Completions that only refer to their chats, made whole again from the log."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from osmosis_grpc.types import Completion, TrajectoryEvent, events
from osmosis_grpc.types.assembly import Assembler


def whole(completion: Completion, trajectory: Callable[[str, int], Iterable[TrajectoryEvent]]) -> Completion:
    """The completion with the tokens of its segments; `trajectory` gives an attempt's events."""
    if not any(segment.referred for sample in completion.samples.values() for segment in sample.segments):
        return completion
    assemblers = {name: Assembler() for name in completion.samples}
    asked: dict[tuple[str, int], events.ChatRequested] = {}
    for event in trajectory(completion.rollout_id, completion.attempt):
        kind = event.kind
        if isinstance(kind, events.Resumed):  # what follows tells everything again
            asked.clear()
            assemblers = {name: Assembler() for name in completion.samples}
        elif isinstance(kind, events.ChatRequested):
            asked[kind.sample, kind.number] = kind
        elif isinstance(kind, events.ChatAnswered) and kind.sample in assemblers:
            question = asked[kind.sample, kind.number]
            assemblers[kind.sample].add(kind.number, question.continues, kind.response, question.purpose)
    samples = {
        name: replace(sample, segments=assemblers[name].segments()) for name, sample in completion.samples.items()
    }
    return replace(completion, samples=samples)
