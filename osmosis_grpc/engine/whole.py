"""Completions that only refer to their chats, made whole again from the log."""

from dataclasses import replace

from osmosis_grpc.agent.ports import Store
from osmosis_grpc.types import Completion, events
from osmosis_grpc.types.assembly import Assembler

_ALL = 2**62


def whole(completion: Completion, store: Store) -> Completion:
    """The completion with the tokens of its segments."""
    if not any(segment.referred for sample in completion.samples.values() for segment in sample.segments):
        return completion
    assemblers = {name: Assembler() for name in completion.samples}
    asked: dict[tuple[str, int], events.ChatRequested] = {}
    for event in store.events(completion.rollout_id, completion.attempt, 0, _ALL):
        kind = event.kind
        if isinstance(kind, events.ChatRequested):
            asked[kind.sample, kind.number] = kind
        elif isinstance(kind, events.ChatAnswered) and kind.sample in assemblers:
            question = asked[kind.sample, kind.number]
            assemblers[kind.sample].add(kind.number, question.continues, kind.response, question.purpose)
    samples = {
        name: replace(sample, segments=assemblers[name].segments()) for name, sample in completion.samples.items()
    }
    return replace(completion, samples=samples)
