"""The recorded chats of a rollout. When the agent runs again, it gets the recorded replies.

If an outcome refers to chats, their messages and tokens also come from the record.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from osmosis_grpc.engine.journal_port import Journal
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.protocol.errors import CLASSES, Aborted, CallError, InvalidArgument, UnknownError
from osmosis_grpc.protocol.types import (
    ChatResponse,
    Fork,
    Message,
    PrefixChat,
    RolloutOutcome,
    Sample,
    Segment,
    TrajectoryEvent,
    events,
    jsontext,
)
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder

ChatName = tuple[str, int]
"""The name of the sample, and the number of the chat."""


class Diverged(Exception):
    """Raised when an agent that runs again sends a different chat than in its earlier run."""

    def __init__(self, asked: events.ChatRequested, original: str = "") -> None:
        name = f"chat {asked.chat_number} of sample {asked.sample!r}"
        super().__init__(
            f"{name} is not what rollout {original} asked, from which this rollout forks: the two requests differ, "
            "or the agent does not do the same when it is run again"
            if original
            else f"{name} is not what was asked before: the agent's code has changed, or the agent does not do the "
            "same when it is run again"
        )


class Reply(NamedTuple):
    """A recorded reply, and the number of the event that recorded it."""

    response: ChatResponse
    event_number: int
    """0 if no event of this rollout has recorded the reply yet."""
    latency: float = 0.0
    forked: bool = False
    """Whether the reply was recorded in the rollout that this rollout forks from."""


class ForkedChats:
    """The recorded chats of a fork's original, up to the chat from which the fork starts."""

    def __init__(self, fork: Fork, trajectory: Iterable[TrajectoryEvent]) -> None:
        """Read the events of the original up to the reply to that chat. `found` is whether there is such a reply."""
        self._rollout_id = fork.rollout_id
        self._questions: dict[ChatName, str] = {}
        self._ends: dict[ChatName, ChatResponse | events.ChatFailed] = {}
        self.found = False
        self.nbytes = 0
        """The approximate size of the chats in memory, in bytes."""
        self.answered: list[ChatName] = []
        """The chats that have a reply, in the order of the replies."""
        self.compares = True
        """Whether a chat that differs from the recorded one is an error. Otherwise it also gets the recorded reply."""
        self.folder: Path | None = None
        """The folder with the files of the original; None if there is none."""
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.ChatRequested):
                self._questions[kind.sample, kind.chat_number] = text = question(kind)
                self.nbytes += len(text)
            elif isinstance(kind, events.ChatAnswered):
                name = kind.sample, kind.chat_number
                if not isinstance(self._ends.get(name), ChatResponse):
                    self.answered.append(name)
                    self.nbytes += 2 * kind.response.size
                self._ends[name] = kind.response
                if name == (fork.sample, fork.chat_number):
                    self.found = True
                    return
            elif isinstance(kind, events.ChatFailed) and not kind.will_retry and kind.code != Aborted.code:
                self._ends[kind.sample, kind.chat_number] = kind

    def reply(self, asked: events.ChatRequested) -> Reply | CallError | None:
        """Return the recorded reply or error of a chat, or None if the trainer has to answer it.

        Raises Diverged if the chat differs from the recorded one.
        """
        name = asked.sample, asked.chat_number
        end = self._ends.get(name)
        if end is None:
            return None
        if self.compares and self._questions.get(name) != question(asked):
            raise Diverged(asked, self._rollout_id)
        if isinstance(end, events.ChatFailed):
            kind = CLASSES.get(end.code, UnknownError)
            return InvalidArgument("", end.message) if kind is InvalidArgument else kind(end.message)
        return Reply(end, 0, forked=True)


class Recording:
    """The questions and replies of all runs of one attempt, by sample and number."""

    def __init__(self, trajectory: Iterable[TrajectoryEvent]) -> None:
        self._questions: dict[ChatName, str] = {}
        self._replies: dict[ChatName, Reply] = {}
        self.params: dict[ChatName, Mapping[str, Any]] = {}
        """The parameters of the chats, including pinned ones."""
        self.beside: dict[ChatName, tuple[int, ...]] = {}
        """For each chat, the other chats of its sample that were open when it was first sent, if there were any."""
        self.began = False
        self.ran = False
        """Whether the agent ran in the last process that had the rollout."""
        self.progressed = False
        """Whether the agent got a new reply in the last process that had the rollout."""
        self.cancelled: str | None = None
        """The reason of the cancel, or None if there was none."""
        running: defaultdict[str, dict[int, None]] = defaultdict(dict)
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.Started):
                self.began = self.ran = True
            elif isinstance(kind, events.Resumed):
                self.ran = self.progressed = False
                running.clear()
            elif isinstance(kind, events.ChatRequested):
                beside = running[kind.sample]
                if beside and (kind.sample, kind.chat_number) not in self._questions:
                    self.beside[kind.sample, kind.chat_number] = tuple(beside)
                beside[kind.chat_number] = None
                self._questions[kind.sample, kind.chat_number] = question(kind)
                self.params[kind.sample, kind.chat_number] = kind.params
            elif isinstance(kind, events.ChatAnswered):
                self.progressed = self.progressed or not (kind.recorded_event or kind.forked)
                number = kind.recorded_event or event.event_number
                reply = Reply(kind.response, number, kind.latency, kind.forked)
                self._replies[kind.sample, kind.chat_number] = reply
                running[kind.sample].pop(kind.chat_number, None)
            elif isinstance(kind, events.ChatFailed) and not kind.will_retry:
                running[kind.sample].pop(kind.chat_number, None)
            elif isinstance(kind, events.CancelAsked):
                self.cancelled = kind.reason

    def count(self, meter: Meter) -> None:
        """Add the recorded replies to the metrics of a rollout whose agent does not run again."""
        for response, _, latency, forked in self._replies.values():
            if forked:
                continue
            prompt_ids = 0 if response.prompt_ids is None else response.prompt_prefix + len(response.prompt_ids)
            meter.answered(response, prompt_ids, latency)

    def reply(self, asked: events.ChatRequested) -> Reply | None:
        """Return the recorded reply of a chat; None if there is none. Raises Diverged if the recorded chat differs."""
        name = asked.sample, asked.chat_number
        before = self._questions.get(name)
        if before is not None and before != question(asked):
            raise Diverged(asked)
        return self._replies.get(name)

    def reached(self, fork: Fork) -> bool:
        """Return whether the rollout has received the last reply that it takes from its original."""
        return (fork.sample, fork.chat_number) in self._replies


def question(asked: events.ChatRequested) -> str:
    """Return a string that identifies the content of an agent's chat.

    It does not contain pinned parameters, because the trainer or the server may pin others by now.
    """
    body = [asked.parent_chat, list(asked.messages), dict(asked.agents_params), asked.purpose.value, asked.policy]
    return jsontext.canonical([*body, None if asked.tools is None else list(asked.tools)])


def resolve_references(
    outcome: RolloutOutcome, trajectory: Callable[[str, int], Iterable[TrajectoryEvent]]
) -> RolloutOutcome:
    """Return the outcome with its references replaced by messages and tokens, from the events of `trajectory`."""
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
    """Call resolve_references() with events from the journal, read and decoded outside the event loop."""
    if not has_references(outcome):
        return outcome
    return await store.read_apart(lambda trajectories: resolve_references(outcome, trajectories))


async def assembler_from_journal(rollout_id: str, attempt: int, sample: str, store: Journal) -> SegmentBuilder:
    """Return an assembler with the tokens of a sample's answered chats, read outside the event loop."""
    return await store.read_apart(lambda trajectories: _assembled(sample, *_chats(trajectories(rollout_id, attempt))))


def has_references(outcome: RolloutOutcome) -> bool:
    """Return whether an outcome refers to chats instead of containing their messages or tokens."""
    begins = (sample.begins for sample in outcome.samples.values())
    return _has_referred_segments(outcome) or any(ref is not None and not ref.prefix_len for ref in begins)


def _has_referred_segments(outcome: RolloutOutcome) -> bool:
    return any(segment.referred for sample in outcome.samples.values() for segment in sample.segments)


def _chats(
    trajectory: Iterable[TrajectoryEvent],
) -> tuple[dict[ChatName, events.ChatRequested], dict[ChatName, events.ChatAnswered]]:
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
    """Return a conversation in full. If it begins with a reference to a chat, put the messages of that chat first."""
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
    """Return a sample with segments assembled from the log. If the log lacks one of its chats, it is not trainable."""
    if [segment.chats for segment in segments] == [segment.chats for segment in sample.segments]:
        return replace(sample, segments=segments)
    reason = "the journal does not have all of its chats, and this trainer did not answer them"
    return replace(sample, segments=(), trainable=False, not_trainable_reason=reason)


def _assembled(
    sample: str, asked: Mapping[ChatName, events.ChatRequested], answered: Mapping[ChatName, events.ChatAnswered]
) -> SegmentBuilder:
    assembler = SegmentBuilder()
    for (name, number), reply in answered.items():
        if name == sample:
            question = asked[name, number]
            assembler.add(number, question.parent_chat, reply.response, question.purpose, forked=reply.forked)
    return assembler
