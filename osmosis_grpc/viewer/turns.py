"""Prepares the turns of a rollout for its page: a row with a bar for each turn, and the body of one turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osmosis_grpc.protocol.types import Message, Sample, events
from osmosis_grpc.records.reading.history import MAIN, Chat, ChatName, History, ToolCall, by_tool, sampled
from osmosis_grpc.records.reading.message_text import mapping, mappings, reasoning_of, text_of
from osmosis_grpc.viewer.images import Part, parts_of
from osmosis_grpc.viewer.reads import Loaded

WIDTH = 1000
SLIVER = 14
"""The least width of a part of a bar, in units. It is 2 px in the bar of a turn, which is 9rem wide."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a bar. `seconds` is its length on the axis."""

    kind: str
    left: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `begin` to `end`. A bar on it is at least `least` units wide, so that it can be seen."""

    begin: float
    end: float
    least: float

    def bar(self, kind: str, start: float, end: float) -> Bar:
        """Return the bar from `start` to `end`, clipped to the axis."""
        scale = WIDTH / max(1e-9, self.end - self.begin)
        left = min(max(0.0, (start - self.begin) * scale), WIDTH - self.least)
        width = min(max(self.least, (end - start) * scale), WIDTH - left)
        return Bar(kind, round(left, 1), round(width, 1), max(0.0, end - start))


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One line of the timeline."""

    sample: str
    number: int
    text: str
    tools: tuple[tuple[str, str, str], ...]
    """The tools that it calls: the name, the state (ok, bad or live), and the arguments as in brief()."""
    state: str
    """answered, failed or open."""
    seconds: float
    tool_seconds: float
    tokens: int | None
    bars: tuple[Bar, ...]
    failing: str
    """Why a failed rollout is opened at this turn; empty for other turns."""

    @property
    def name(self) -> str:
        """The sample and the number, as in the address of the page."""
        return f"{self.sample}/{self.number}"

    @property
    def label(self) -> str:
        """The number, preceded by the sample if it is not the main one."""
        return str(self.number) if self.sample == MAIN else f"{self.sample} {self.number}"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a reply with its result."""

    name: str
    id: str
    arguments: str
    result: Sequence[Part] | None
    error: str
    seconds: float | None
    running: bool


@dataclass(frozen=True, slots=True)
class TurnBody:
    """A whole turn."""

    row: TurnRow
    chat: Chat
    before: tuple[Message, ...]
    """The new messages, without the results of tools that an earlier turn called."""
    results: int
    """How many tool results were left out of `before`. They are shown in the turn that called the tools."""
    reasoning: str
    content: str
    calls: tuple[Call, ...]
    logged: tuple[events.Logged, ...]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a rollout used a tool."""

    name: str
    calls: int
    seconds: float
    slowest: ToolCall
    raised: int


def tool_uses(loaded: Loaded) -> Iterator[ToolUse]:
    """Yield the use of each tool, beginning with the tool that took the most time."""
    for name, calls in by_tool(loaded.history.tools, loaded.end):
        yield ToolUse(
            name,
            len(calls),
            sum(call.seconds(loaded.end) for call in calls),
            max(calls, key=lambda call: call.seconds(loaded.end)),
            sum(bool(call.returned and call.returned.error) for call in calls),
        )


class Failing(NamedTuple):
    """The turn at which a failed rollout is opened."""

    sample: str
    number: int
    why: str

    @property
    def name(self) -> ChatName:
        """The sample and the number."""
        return self.sample, self.number


def failing(loaded: Loaded) -> Failing | None:
    """Return the last turn in which a tool raised, else the last turn. Return None if the rollout did not fail."""
    outcome, history = loaded.info.outcome, loaded.history
    if outcome is None or outcome.failure is None:
        return None
    for tool in reversed(history.tools):
        if tool.returned is not None and tool.returned.error and (tool.sample, tool.chat_number) in history.chats:
            return Failing(tool.sample, tool.chat_number, "tool raised")
    return None if history.last is None else Failing(*history.last, "last turn")


def rows_of(loaded: Loaded) -> list[TurnRow]:
    """Return the turns in the order in which they began."""
    tools: dict[ChatName, list[ToolCall]] = {}
    for tool in loaded.history.tools:
        tools.setdefault((tool.sample, tool.chat_number), []).append(tool)
    look = failing(loaded)
    return [_row(loaded, chat, tools.get(chat.name, []), look) for chat in loaded.history.chats.values()]


def _row(loaded: Loaded, chat: Chat, tools: Sequence[ToolCall], look: Failing | None) -> TurnRow:
    answer, end = chat.answered, loaded.end
    reply = answer.response.message if answer is not None else {}
    content = text_of(reasoning_of(reply)[1])
    known = {tool.id: tool for tool in tools}
    ended = loaded.info.end_time is not None
    names = []
    for call in mappings(reply.get("tool_calls")):
        tool = known.get(str(call.get("id")))
        function = mapping(call.get("function"))
        names.append((str(function.get("name")), _state(tool, ended), brief(function.get("arguments"))))
    if answer is None:
        content = chat.failures[-1].message if chat.failures else "waits for a reply"
    return TurnRow(
        sample=chat.asked.sample,
        number=chat.asked.chat_number,
        text=content,
        tools=tuple(names),
        state="answered" if answer is not None else "failed" if chat.failures or ended else "open",
        seconds=answer.latency if answer is not None else max(0.0, (chat.ended or end) - chat.began),
        tool_seconds=sum(tool.seconds(end) for tool in tools),
        tokens=None if answer is None else sampled(answer),
        bars=tuple(_bars(loaded, chat, tools)),
        failing=look.why if look is not None and chat.name == look.name else "",
    )


def _state(tool: ToolCall | None, ended: bool) -> str:
    if tool is not None and tool.returned is None:
        return "bad" if ended else "live"
    return "bad" if tool is not None and tool.returned is not None and tool.returned.error else "ok"


def brief(arguments: Any) -> str:
    """Return the arguments of a tool call as one line, such as city=Lisbon. Keep a text that is not a JSON object."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    if not isinstance(value, Mapping):
        return "" if value is None else str(arguments)
    given = ((name, it if isinstance(it, str) else json.dumps(it, default=str)) for name, it in value.items())
    return ", ".join(f"{name}={text}" for name, text in given)


def calls_of(message: Message) -> list[tuple[str, str]]:
    """Return the tool calls of a message: their names and their arguments as in brief()."""
    functions = (mapping(call.get("function")) for call in mappings(message.get("tool_calls")))
    return [(str(each.get("name")), brief(each.get("arguments"))) for each in functions]


def _bars(loaded: Loaded, chat: Chat, tools: Sequence[ToolCall]) -> Iterator[Bar]:
    axis = Axis(loaded.info.accept_time, loaded.end, SLIVER)
    yield axis.bar("model", chat.began, chat.ended or loaded.end)
    for tool in tools:
        yield axis.bar("tools", tool.began, tool.ended or loaded.end)


def split(loaded: Loaded) -> list[Bar]:
    """Return how the time of a rollout was used, as parts of one bar. Each part is wide enough to be seen."""
    times = loaded.history.times(loaded.end, loaded.info.outcome)
    parts = [("queue", times.queue), ("model", times.model), ("tools", times.tools), ("agent", times.agent)]
    parts += [("away", times.restart)] if times.restart else []
    scale, left, bars = WIDTH / max(1e-9, sum(seconds for _, seconds in parts)), 0.0, []
    widths = [max(SLIVER, seconds * scale) if seconds > 0 else 0.0 for _, seconds in parts]
    shrunk = WIDTH / max(WIDTH, sum(widths))
    for (kind, seconds), width in zip(parts, widths, strict=True):
        bars.append(Bar(kind, round(left, 1), round(width * shrunk, 1), seconds))
        left += width * shrunk
    return bars


def body_of(loaded: Loaded, name: ChatName) -> TurnBody | None:
    """Return a whole turn; None if the rollout does not have it."""
    history = loaded.history
    chat = history.chats.get(name)
    if chat is None:
        return None
    answer = chat.answered
    tools = [tool for tool in history.tools if (tool.sample, tool.chat_number) == name]
    samples = history.samples(loaded.info.outcome)
    reply = answer.response.message if answer is not None else {}
    thought, content = reasoning_of(reply)
    parent = history.chats.get((chat.asked.sample, chat.asked.parent_chat))
    shown_there = history.tool_messages(parent, samples) if parent is not None else []
    before = tuple(chat.asked.messages[len(shown_there) :])
    about: dict[str, Any] = dict(chat.asked.params)
    if chat.asked.passed is not None:
        about["passed by the agent"] = dict(chat.asked.passed)
    if chat.asked.policy:
        about["policy"] = chat.asked.policy
    if answer is not None:
        about |= {name: value for name, value in (answer.response.usage or {}).items() if isinstance(value, int)}
        about["finish reason"] = answer.response.finish_reason or "none"
    return TurnBody(
        row=_row(loaded, chat, tools, failing(loaded)),
        chat=chat,
        before=before,
        results=len(shown_there),
        reasoning=thought,
        content=text_of(content),
        calls=tuple(_calls(loaded, chat, tools, samples)),
        logged=tuple(event for event in history.logged if (event.sample or MAIN, event.chat_number) == name),
        about=about,
    )


def _calls(loaded: Loaded, chat: Chat, tools: Sequence[ToolCall], samples: Mapping[str, Sample]) -> Iterator[Call]:
    """Yield the tool calls of a reply, and the calls that the agent made without the model."""
    history: History = loaded.history
    results = {str(message.get("tool_call_id")): message for message in history.tool_messages(chat, samples)}
    known = {tool.id: tool for tool in tools}
    reply = chat.answered.response.message if chat.answered is not None else {}
    asked = {str(call.get("id")): call for call in mappings(reply.get("tool_calls"))}
    for call_id, call in {**{tool.id: tool.call for tool in tools}, **asked}.items():
        tool, function = known.get(call_id), mapping(call.get("function"))
        end = tool.returned if tool is not None else None
        message = results.get(call_id) or (end.message if end is not None else None)
        arguments = function.get("arguments")
        yield Call(
            name=str(function.get("name")),
            id=call_id,
            arguments="" if arguments is None else str(arguments),
            result=None if message is None else parts_of(message.get("content")),
            error=end.error if end is not None else "",
            seconds=None if tool is None else tool.seconds(loaded.end),
            running=tool is not None and end is None and loaded.info.end_time is None,
        )
