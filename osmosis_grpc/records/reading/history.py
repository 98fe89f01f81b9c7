"""Rebuilds a rollout from its events: its chats, its tool calls, its samples, and how its time was used."""

import itertools
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osmosis_grpc.protocol.types import (
    ChatRequest,
    FailureReason,
    Message,
    RolloutOutcome,
    RolloutRequest,
    Sample,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.records.reading.message_text import CallName, ToolEnd, mapping

MAIN = "main"
ENDED_BY_START = (FailureReason.RESTART, FailureReason.CRASHED_SERVER, FailureReason.AGENT_LOOP_NOT_FOUND)
"""The reasons with which a starting server ends rollouts. Their agents stopped earlier, with the last process."""
ChatName = tuple[str, int]


@dataclass(slots=True)
class Chat:
    """A chat with its whole history."""

    asked: events.ChatRequested
    began: float
    """Unix seconds."""
    messages: Sequence[Message]
    """The whole history."""
    prefix_len: int
    """How many messages at the beginning come from the chat that this one continues."""
    answered: events.ChatAnswered | None = None
    failures: list[events.ChatFailed] = field(default_factory=list)
    ended: float | None = None

    @property
    def name(self) -> ChatName:
        """The sample and the number."""
        return self.asked.sample, self.asked.chat_number


@dataclass(slots=True)
class ToolCall:
    """A tool call and its result, if it has ended."""

    call: Any
    sample: str
    chat_number: int
    began: float
    returned: events.ToolReturned | None = None
    ended: float | None = None

    @property
    def id(self) -> str:
        """The id of the call."""
        return str(self.call.get("id"))

    @property
    def name(self) -> str:
        """The name of the tool."""
        return str(mapping(self.call.get("function")).get("name"))

    def seconds(self, now: float) -> float:
        """Return how many seconds the call took, or has taken until `now`."""
        return self.returned.latency if self.returned is not None else max(0.0, now - self.began)


@dataclass(frozen=True, slots=True)
class Times:
    """How a rollout spent its time, in seconds. The parts add up to the total."""

    total: float
    queue: float
    model: float
    """The time with at least one open chat."""
    tools: float
    """The time with a running tool and no open chat."""
    agent: float
    """The rest, which is the agent's own time."""
    restart: float = 0.0
    """The time between the last event before a restart of the server and the first one after it."""


@dataclass(slots=True)
class History:
    """The state of an attempt, rebuilt from its events. Only times() counts events before the last restart."""

    request: RolloutRequest | None = None
    agent_version: str = ""
    accepted: float = 0.0
    started: float | None = None
    chats: dict[ChatName, Chat] = field(default_factory=dict)
    tools: list[ToolCall] = field(default_factory=list)
    added: dict[str, events.SampleAdded] = field(default_factory=dict)
    graded: list[events.Graded] = field(default_factory=list)
    logged: list[events.Logged] = field(default_factory=list)
    annotated: list[events.Annotated] = field(default_factory=list)
    last: ChatName | None = None
    """The chat of the newest chat or tool event."""
    delivery: events.Delivered | None = None
    """How the delivery ended; None before that."""
    cancel_reason: str = ""
    """The reason of the newest cancel."""
    earlier: list[Times] = field(default_factory=list)
    """The times before each restart of the server."""
    began: float = 0.0
    """When the rollout was accepted or last restarted, in Unix seconds."""
    newest: float = 0.0
    """The time of the newest event."""
    before_end: float = 0.0
    """The time of the newest event before the end."""
    delivered: float | None = None
    """When the delivery of the outcome ended, in Unix seconds."""

    def add(self, event: TrajectoryEvent) -> None:
        """Add the next event."""
        kind = event.kind
        before, self.newest = self.newest, event.time
        match kind:
            case events.Accepted():
                self.request, self.accepted, self.began = kind.init.request, event.time, event.time
            case events.Started():
                self.agent_version, self.started = kind.agent_version, event.time
            case events.Resumed():  # all chats are repeated after this event
                self.earlier.append(replace(self._spent(before), restart=event.time - before))
                self.began = event.time
                for each in (self.chats, self.tools, self.added, self.graded, self.logged):
                    each.clear()
                self.last = None
            case events.ChatRequested():
                self._asked(kind, event.time)
            case events.ChatAnswered() | events.ChatFailed():
                self._chat_ended(kind, event.time)
            case events.ToolCalled():
                sample, number = self.place(kind.sample, kind.chat_number)
                self.tools.append(ToolCall(kind.call, sample, number, event.time))
                self.last = sample, number
            case events.ToolReturned():
                self._tool_ended(kind, event.time)
            case events.SampleAdded():
                self.added[kind.sample] = kind
            case events.Graded():
                self.graded.append(kind)
            case events.Logged():
                self.logged.append(kind)
            case events.Ended():
                self.before_end = before
            case events.Delivered():
                self.delivered, self.delivery = event.time, kind
            case events.CancelAsked():
                self.cancel_reason = kind.reason
            case events.Annotated():
                self.annotated.append(kind)
            case _:
                pass

    def _asked(self, kind: events.ChatRequested, time: float) -> None:
        parent = self.chats.get((kind.sample, kind.parent_chat))
        before: list[Message] = []
        if parent is not None and parent.answered is not None:
            before = [*parent.messages, parent.answered.response.message]
        chat = Chat(kind, time, [*before, *kind.messages], len(before))
        self.chats[chat.name] = chat
        self.last = chat.name

    def _chat_ended(self, kind: events.ChatAnswered | events.ChatFailed, time: float) -> None:
        chat = self.chats.get((kind.sample, kind.chat_number))
        if chat is None:
            return
        if isinstance(kind, events.ChatAnswered):
            chat.answered, chat.ended = kind, time
        else:
            chat.failures.append(kind)
            chat.ended = None if kind.will_retry else time
        self.last = chat.name

    def _tool_ended(self, kind: events.ToolReturned, time: float) -> None:
        open_calls = [tool for tool in self.tools if tool.returned is None and tool.id == kind.tool_call_id]
        sample, number = self.place(kind.sample, kind.chat_number)
        found = next((tool for tool in reversed(open_calls) if tool.sample == sample), None)
        if found is None:
            call = {"id": kind.tool_call_id, "function": {"name": kind.name}}
            found = ToolCall(call, sample, number, time - kind.latency)
            self.tools.append(found)
        found.returned, found.ended = kind, time
        self.last = sample, number

    def place(self, sample: str, number: int) -> ChatName:
        """Return the chat of a tool call, or the newest chat if the call has no sample."""
        return (sample, number) if sample else self.last or (MAIN, 0)

    def answered(self) -> list[tuple[ChatRequest, Message]]:
        """Return the answered chats with their replies, in the order of their numbers in each sample."""
        return [
            (
                ChatRequest(
                    rollout_id="",
                    sample=chat.asked.sample,
                    chat_number=chat.asked.chat_number,
                    messages=chat.messages,
                    parent_chat=chat.asked.parent_chat,
                    prefix_len=chat.prefix_len,
                ),
                chat.answered.response.message,
            )
            for _, chat in sorted(self.chats.items(), key=lambda item: item[0][1])
            if chat.answered is not None
        ]

    def samples(self, outcome: RolloutOutcome | None) -> dict[str, Sample]:
        """Return the samples of the outcome. Add the messages that only events have.

        These are the messages of failed chats and, before the end, the newest chat of a sample with its tool results.
        """
        known = dict(outcome.samples) if outcome is not None else {}
        found: dict[str, Sample] = {}
        names = [*known, *(name for name, _ in self.chats), *self.added]
        for name in dict.fromkeys(names):
            sample = known.get(name) or Sample(**self._origin(name))
            newest, answered = self._newest(name)
            ended = len(sample.messages)
            continued = not answered and len(newest) > ended and [*newest[:ended]] == [*sample.messages]
            if outcome is None or name not in known or continued:
                sample = replace(sample, messages=newest)
            found[name] = sample
        return found

    def _origin(self, name: str) -> dict[str, Any]:
        added = self.added.get(name)
        return {} if added is None else {"policy": added.policy, "parent": added.parent, "train": added.train}

    def _newest(self, name: str) -> tuple[Sequence[Message], bool]:
        """Return the history of a sample's newest chat, including the reply, and whether there is a reply."""
        chats = [chat for (sample, _), chat in self.chats.items() if sample == name]
        if not chats:
            return self.request.messages if self.request is not None and name == MAIN else (), False
        newest = max(chats, key=lambda chat: chat.asked.chat_number)
        if newest.answered is None:
            return newest.messages, False
        return [*newest.messages, newest.answered.response.message], True

    def tool_ends(self, sample: str, now: float | None) -> dict[CallName, ToolEnd]:
        """Return how each tool call of a sample ended. `now` is None for an ended rollout."""
        found = {}
        for tool in self.tools:
            if tool.sample != sample:
                continue
            missing = "it did not return" if now is None else f"it runs, for {max(0.0, now - tool.began):.1f} s"
            end = tool.returned
            known = ToolEnd(missing=missing) if end is None else ToolEnd(end.latency, end.error, end.message)
            found[tool.chat_number, tool.id] = known
        return found

    def tool_messages(self, chat: Chat, samples: Mapping[str, Sample]) -> list[Message]:
        """Return the tool messages after the reply of a chat, found in the next chat or the final conversation."""
        if chat.answered is None:
            return []
        sources: list[Sequence[Message]] = [
            each.asked.messages
            for each in self.chats.values()
            if (each.asked.sample, each.asked.parent_chat) == chat.name
        ]
        final = samples.get(chat.asked.sample)
        if not sources and final is not None:
            messages, reply = list(final.messages), chat.answered.response.message
            sources += [messages[at + 1 :] for at, message in enumerate(messages) if message == reply][-1:]
        return list(itertools.takewhile(lambda message: message.get("role") == "tool", sources[0] if sources else ()))

    def notes(self, sample: str) -> dict[int, str]:
        """Return note() for each answered chat of a sample, by number."""
        return {number: note(chat) for (name, number), chat in self.chats.items() if name == sample and chat.answered}

    def times(self, end: float, outcome: RolloutOutcome | None) -> Times:
        """Return how the time until `end` was spent, from the metrics of the outcome or else from the events.

        After a restart of the server, the metrics lack the time before it, which is added from the events.
        """
        ran = self.ran_until(end, outcome)
        if outcome is not None and not self.earlier and ran == end:
            metrics = outcome.metrics
            total = metrics.total_latency_ms / 1000
            return Times(total, metrics.queue_time, metrics.model_time, metrics.tool_time, metrics.overhead_time)
        parts = [*self.earlier, replace(self._spent(ran), restart=end - ran)]
        names = ("queue", "model", "tools", "agent", "restart")
        return Times(max(0.0, end - self.accepted), *(sum(getattr(each, name) for each in parts) for name in names))

    def ran_until(self, end: float, outcome: RolloutOutcome | None) -> float:
        """Return `end`. If a starting server ended the rollout, return the time of its last event before that."""
        failure = outcome.failure if outcome is not None else None
        return self.before_end or end if failure is not None and failure.reason in ENDED_BY_START else end

    def _spent(self, end: float) -> Times:
        """Return how the time from the last restart until `end` was spent."""
        started = max(self.began, self.started if self.started is not None else end)
        model = [(chat.began, chat.ended or end) for chat in self.chats.values()]
        tools = [(tool.began, tool.ended or end) for tool in self.tools]
        with_model, with_any = _covered(model), _covered([*model, *tools])
        total, queue = max(0.0, end - self.began), max(0.0, started - self.began)
        return Times(total, queue, with_model, with_any - with_model, max(0.0, total - queue - with_any))


def note(chat: Chat) -> str:
    """Describe an answered chat: its latency, its tokens, and its finish reason if that is unusual."""
    answer = chat.answered
    assert answer is not None
    parts = [f"{answer.latency:.2f} s"]
    tokens = sampled(answer)
    if tokens is not None:
        parts.append(f"{tokens} token{'' if tokens == 1 else 's'}")
    if answer.response.finish_reason not in ("stop", "tool_calls", ""):
        parts.append(answer.response.finish_reason)
    if answer.forked:
        parts.append("recorded")
    elif answer.recorded_event:
        parts.append("replayed")
    return ", ".join(parts)


def sampled(answer: events.ChatAnswered) -> int | None:
    """Return the number of tokens of a reply, or None if it is unknown."""
    if answer.response.tokens is not None:
        return len(answer.response.tokens.ids)
    count = (answer.response.usage or {}).get("completion_tokens")
    return count if isinstance(count, int) else None


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans, in seconds."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


async def history_of(trail: AsyncIterable[TrajectoryEvent]) -> History:
    """Rebuild a history from all events of an attempt."""
    history = History()
    async for event in trail:
        history.add(event)
    return history


def by_tool(tools: Sequence[ToolCall], now: float) -> Iterator[tuple[str, list[ToolCall]]]:
    """Yield each tool with its calls, the tool that took the most time first."""
    found: dict[str, list[ToolCall]] = {}
    for tool in tools:
        found.setdefault(tool.name, []).append(tool)
    yield from sorted(found.items(), key=lambda item: -sum(tool.seconds(now) for tool in item[1]))
