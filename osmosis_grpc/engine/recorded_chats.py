"""The recorded chats of a rollout. When the agent runs again, it gets the recorded replies."""

from collections.abc import Iterable
from typing import NamedTuple

from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.types import ChatResponse, TrajectoryEvent, events, jsontext

ChatName = tuple[str, int]
"""The name of the sample, and the number of the chat."""


class Diverged(Exception):
    """Raised when an agent runs again and asks a different question than in its earlier run."""

    def __init__(self, asked: events.ChatRequested) -> None:
        super().__init__(
            f"chat {asked.chat_number} of sample {asked.sample!r} is not what was asked before: "
            "the agent does not do the same when it is run again"
        )


class Reply(NamedTuple):
    """A recorded reply, and the number of the event that recorded it."""

    response: ChatResponse
    chat_number: int
    latency: float = 0.0


class Recording:
    """The questions and replies of all runs of one attempt, by sample and number."""

    def __init__(self, trajectory: Iterable[TrajectoryEvent]) -> None:
        self._questions: dict[ChatName, str] = {}
        self._replies: dict[ChatName, Reply] = {}
        self.began = False
        self.ran = False
        """Whether the agent ran in the last process that had the rollout."""
        self.progressed = False
        """Whether the agent got a new reply in the last process that had the rollout."""
        self.cancelled: str | None = None
        """The reason of a cancel, or None if there was no cancel."""
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.Started):
                self.began = self.ran = True
            elif isinstance(kind, events.Resumed):
                self.ran = self.progressed = False
            elif isinstance(kind, events.ChatRequested):
                self._questions[kind.sample, kind.chat_number] = question(kind)
            elif isinstance(kind, events.ChatAnswered):
                self.progressed = self.progressed or not kind.recorded_event
                number = kind.recorded_event or event.event_number
                self._replies[kind.sample, kind.chat_number] = Reply(kind.response, number, kind.latency)
            elif isinstance(kind, events.CancelAsked):
                self.cancelled = kind.reason

    def count(self, meter: Meter) -> None:
        """Add the recorded replies to the metrics of a rollout. Its agent does not run again."""
        for response, _, latency in self._replies.values():
            prompt_ids = 0 if response.prompt_ids is None else response.prompt_prefix + len(response.prompt_ids)
            meter.answered(response, prompt_ids, latency)

    def reply(self, asked: events.ChatRequested) -> Reply | None:
        """Return the recorded reply of a chat, or None if there is none. Raises Diverged for a different question."""
        name = asked.sample, asked.chat_number
        before = self._questions.get(name)
        if before is not None and before != question(asked):
            raise Diverged(asked)
        return self._replies.get(name)


def question(asked: events.ChatRequested) -> str:
    """Return a text for a question. Two texts are equal only if the questions are equal."""
    body = [asked.parent_chat, list(asked.messages), dict(asked.params), asked.purpose.value, asked.policy]
    return jsontext.canonical([*body, None if asked.tools is None else list(asked.tools)])
