"""Replaces an outcome's references to chats with the messages and tokens of these chats, which are in the log."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.recorded_chats import ChatName
from osmosis_grpc.protocol.types import Message, PrefixChat, RolloutOutcome, Sample, Segment, TrajectoryEvent, events
from osmosis_grpc.protocol.types.segment_assembly import Assembler


def resolve_references(
    outcome: RolloutOutcome, trajectory: Callable[[str, int], Iterable[TrajectoryEvent]]
) -> RolloutOutcome:
    """Return the outcome with all messages, and with the tokens of its segments.

    `trajectory` returns the events of an attempt.
    """
    if not has_references(outcome):
        return outcome
    referred = _has_referred_segments(outcome)
    asked, answered = _chats(trajectory(outcome.rollout_id, outcome.attempt))
    made = {}
    for name, sample in outcome.samples.items():
        begins, messages = _resolved(sample.begins, sample.messages, asked, answered)
        made[name] = replace(sample, begins=begins, messages=messages)
        if referred:
            assembler = _assembled(name, asked, answered)
            assembler.drop(sample.dropped_chats)
            made[name] = _with_tokens(made[name], assembler.segments())
    return replace(outcome, samples=made)


async def resolve_from_journal(outcome: RolloutOutcome, store: Journal) -> RolloutOutcome:
    """Return the result of resolve_references(). The trajectory is read and decoded outside the event loop."""
    if not has_references(outcome):
        return outcome
    return await store.read_apart(lambda trajectories: resolve_references(outcome, trajectories))


async def assembler_from_journal(rollout_id: str, attempt: int, sample: str, store: Journal) -> Assembler:
    """Return an assembler with the tokens of a sample's answered chats. They are read outside the event loop."""
    return await store.read_apart(lambda trajectories: _assembled(sample, *_chats(trajectories(rollout_id, attempt))))


def has_references(outcome: RolloutOutcome) -> bool:
    """Return whether an outcome refers to chats instead of having their messages or tokens."""
    begins = (sample.begins for sample in outcome.samples.values())
    return _has_referred_segments(outcome) or any(ref is not None and not ref.prefix_len for ref in begins)


def _has_referred_segments(outcome: RolloutOutcome) -> bool:
    return any(segment.referred for sample in outcome.samples.values() for segment in sample.segments)


def _chats(
    trajectory: Iterable[TrajectoryEvent],
) -> tuple[dict[ChatName, events.ChatRequested], dict[ChatName, events.ChatAnswered]]:
    """Return the questions and the replies of the newest run of the agent."""
    asked: dict[ChatName, events.ChatRequested] = {}
    answered: dict[ChatName, events.ChatAnswered] = {}
    for event in trajectory:
        kind = event.kind
        if isinstance(kind, events.Resumed):  # the following events repeat all chats
            asked.clear()
            answered.clear()
        elif isinstance(kind, events.ChatRequested):
            asked[kind.sample, kind.chat_number] = kind
        elif isinstance(kind, events.ChatAnswered):
            answered[kind.sample, kind.chat_number] = kind
    return asked, answered


def _resolved(
    begins: PrefixChat | None,
    messages: Sequence[Message],
    asked: Mapping[ChatName, events.ChatRequested],
    answered: Mapping[ChatName, events.ChatAnswered],
) -> tuple[PrefixChat | None, Sequence[Message]]:
    """Return a conversation. If it begins with a reference to a chat, add the messages of this chat."""
    if begins is None or begins.prefix_len:
        return begins, messages
    line, number = [begins.chat_number], asked[begins.sample, begins.chat_number].parent_chat
    while number:
        line.append(number)
        number = asked[begins.sample, number].parent_chat
    known: list[Message] = []
    for number in reversed(line):
        known += [*asked[begins.sample, number].messages, answered[begins.sample, number].response.message]
    return PrefixChat(begins.sample, begins.chat_number, len(known)), [*known, *messages]


def _with_tokens(sample: Sample, segments: tuple[Segment, ...]) -> Sample:
    """Return a sample with the segments of its chats in the log. It is not trainable if the log lacks a chat."""
    if [segment.chats for segment in segments] == [segment.chats for segment in sample.segments]:
        return replace(sample, segments=segments)
    reason = "the journal does not have all of its chats, and this trainer did not answer them"
    return replace(sample, segments=(), trainable=False, not_trainable_reason=reason)


def _assembled(
    sample: str, asked: Mapping[ChatName, events.ChatRequested], answered: Mapping[ChatName, events.ChatAnswered]
) -> Assembler:
    """Return an assembler with the tokens of a sample's chats, in the order of their replies."""
    assembler = Assembler()
    for (name, number), reply in answered.items():
        if name == sample:
            question = asked[name, number]
            assembler.add(number, question.parent_chat, reply.response, question.purpose, forked=reply.forked)
    return assembler
