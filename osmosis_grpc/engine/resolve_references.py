"""Replaces a completion's references to chats with the messages and tokens of these chats, which are in the log."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.recorded_chats import ChatName
from osmosis_grpc.types import ChatRef, Completion, Message, TrajectoryEvent, events
from osmosis_grpc.types.segment_assembly import Assembler


def resolve_references(
    completion: Completion, trajectory: Callable[[str, int], Iterable[TrajectoryEvent]]
) -> Completion:
    """Return the completion with all messages, and with the tokens of its segments.

    `trajectory` returns the events of an attempt.
    """
    if not has_references(completion):
        return completion
    referred = _has_referred_segments(completion)
    asked: dict[ChatName, events.ChatRequested] = {}
    answered: dict[ChatName, events.ChatAnswered] = {}
    for event in trajectory(completion.rollout_id, completion.attempt):
        kind = event.kind
        if isinstance(kind, events.Resumed):  # the following events repeat all chats
            asked.clear()
            answered.clear()
        elif isinstance(kind, events.ChatRequested):
            asked[kind.sample, kind.number] = kind
        elif isinstance(kind, events.ChatAnswered):
            answered[kind.sample, kind.number] = kind
    made = {}
    for name, sample in completion.samples.items():
        begins, messages = _resolved(sample.begins, sample.messages, asked, answered)
        made[name] = replace(sample, begins=begins, messages=messages)
        if referred:
            made[name] = replace(made[name], segments=_assembled(name, asked, answered).segments())
    begins, messages = _resolved(completion.begins, completion.messages, asked, answered)
    return replace(completion, samples=made, begins=begins, messages=messages)


async def resolve_from_journal(completion: Completion, store: Journal) -> Completion:
    """Return the result of resolve_references(). The trajectory is read and decoded outside the event loop."""
    if not has_references(completion):
        return completion
    return await store.read_apart(lambda trajectories: resolve_references(completion, trajectories))


def has_references(completion: Completion) -> bool:
    """Return whether a completion refers to chats instead of having their messages or tokens."""
    begins = (completion.begins, *(sample.begins for sample in completion.samples.values()))
    return _has_referred_segments(completion) or any(ref is not None and not ref.prefix_len for ref in begins)


def _has_referred_segments(completion: Completion) -> bool:
    return any(segment.referred for sample in completion.samples.values() for segment in sample.segments)


def _resolved(
    begins: ChatRef | None,
    messages: Sequence[Message],
    asked: Mapping[ChatName, events.ChatRequested],
    answered: Mapping[ChatName, events.ChatAnswered],
) -> tuple[ChatRef | None, Sequence[Message]]:
    """Return a conversation. If it begins with a reference to a chat, add the messages of this chat."""
    if begins is None or begins.prefix_len:
        return begins, messages
    line, number = [begins.number], asked[begins.sample, begins.number].continues
    while number:
        line.append(number)
        number = asked[begins.sample, number].continues
    known: list[Message] = []
    for number in reversed(line):
        known += [*asked[begins.sample, number].messages, answered[begins.sample, number].response.message]
    return ChatRef(begins.sample, begins.number, len(known)), [*known, *messages]


def _assembled(
    sample: str, asked: Mapping[ChatName, events.ChatRequested], answered: Mapping[ChatName, events.ChatAnswered]
) -> Assembler:
    """Return an assembler with the tokens of a sample's chats, in the order of their replies."""
    assembler = Assembler()
    for (name, number), reply in answered.items():
        if name == sample:
            question = asked[name, number]
            assembler.add(number, question.continues, reply.response, question.purpose)
    return assembler
