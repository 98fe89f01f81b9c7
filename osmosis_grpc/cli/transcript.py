"""Formats a rollout's conversations for a terminal."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.tool_runs import ToolRun
from osmosis_grpc.cli.screen import Line, wrapped
from osmosis_grpc.protocol.types import ChatRequest, Message, RolloutOutcome, Sample
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.message_text import CallName, ToolEnd, mapping, mappings, reasoning_of, text_of
from osmosis_grpc.records.reading.phrases import counted, reward_text

INDENT = 8
"""A line of a conversation is indented by at most this many columns."""
Chats = Sequence[tuple[ChatRequest, Message]]
Messages = Sequence[Mapping[str, Any]]
Numbers = Mapping[int, int] | None


@dataclass(frozen=True, slots=True)
class View:
    """How much of a conversation is shown."""

    messages: int | None = 30
    """The largest number of messages; None for all."""
    lines: int | None = 8
    """The largest number of lines of one message; None for all."""
    width: int = 200
    """Lines are wrapped at this many columns."""
    reasoning: bool | None = None
    """Whether to show the reasoning of replies. False shows only its size, and None nothing."""
    hints: bool = False
    """Whether a line about left-out text names the option that shows it."""
    long_from: int | None = None
    """From this chat on, a message may have `long_lines` lines, because the rollout failed there."""
    long_lines: int = 40


NOT_KNOWN = ToolEnd()


@dataclass(slots=True)
class Conversation:
    """One conversation, with its tool results and remarks."""

    messages: Sequence[Mapping[str, Any]]
    numbers: Mapping[int, int] | None = None
    """Maps the index of a reply to the number of its chat. If None, replies are counted from 1."""
    tools: Mapping[CallName, ToolEnd] = field(default_factory=dict)
    """Maps the chat and the id of a tool call to how the call ended."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """Maps the number of a chat to a remark, such as its latency."""
    view: View = View()
    _paired: list[int] = field(default_factory=list)
    _number: int = 0
    _at: int = 0
    _hinted: bool = False

    def lines(self) -> Iterator[Line]:
        """Yield the lines."""
        counted = itertools.count(1)
        for at, message in enumerate(self.messages):
            if at == self.view.messages:
                yield Line.of(f"... {len(self.messages) - at} more messages", "note")
                return
            number = 0
            if message.get("role") == "assistant":
                number = next(counted) if self.numbers is None else self.numbers.get(at, 0)
            self._number, self._at = number or self._number, at
            yield from self._message(message, number)

    def _message(self, message: Mapping[str, Any], number: int) -> Iterator[Line]:
        """Yield the lines of one message and of the results of its calls."""
        role = message.get("role")
        if role == "tool":
            if id(message) not in self._paired:
                yield from self._text(f"tool ({message.get('tool_call_id')})", message.get("content"))
            return
        label, note = str(role), self.notes.get(number, "")
        if role == "assistant" and number:
            label = f"{number} assistant"
        thought, content = reasoning_of(message)
        if thought and self.view.reasoning is not None:
            yield from self._reasoning(f"{number} reasoning" if number else "reasoning", thought)
        noted = f"{label} ({note})" if note else label
        if content or not message.get("tool_calls"):
            yield from self._text(noted, content, "turn" if role == "assistant" else "")
            noted = label
        for call in mappings(message.get("tool_calls")):
            function = mapping(call.get("function"))
            text = f"{noted} calls {function.get('name')} {function.get('arguments')}"
            yield from self._limited(list(self._wrapped(text, "call")))
            noted = label
            yield from (line.indented(4) for line in self._result(str(call.get("id"))))

    def _result(self, call_id: str) -> Iterator[Line]:
        """Yield the lines of a call's result: from the conversation, or else from the recorded end of the tool."""
        end = self.tools.get((self._number, call_id)) or self.tools.get((0, call_id)) or NOT_KNOWN
        found = self._answer(call_id)
        if found is not None:
            self._paired.append(id(found))
        result = found if found is not None else end.message
        took = "" if end.latency is None else f" ({end.latency * 1000:.1f} ms)"
        if result is not None:
            yield from self._text(f"result{took}", result.get("content"), "error" if end.error else "")
            if end.error not in text_of(result.get("content")):  # the model does not get the type and the place
                yield from self._text("raised", end.error, "error")
        elif end.error:
            yield from self._text(f"error{took}", end.error, "error")
        else:
            yield Line.of(end.missing, "note")

    def _answer(self, call_id: str) -> Mapping[str, Any] | None:
        """Return the tool message that answers a call of the current reply. Later replies may reuse the call id."""
        for message in self.messages[self._at + 1 :]:
            if any(str(call.get("id")) == call_id for call in mappings(message.get("tool_calls"))):
                return None
            answers = message.get("role") == "tool" and str(message.get("tool_call_id")) == call_id
            if answers and id(message) not in self._paired:
                return message
        return None

    def _reasoning(self, label: str, thought: str) -> Iterator[Line]:
        if self.view.reasoning:
            yield from self._text(label, thought, "reasoning")
            return
        lines = len(thought.splitlines())
        size = f"{lines} line{'' if lines == 1 else 's'}, {len(thought)} characters"
        hint = " (--reasoning shows it)" if self.view.hints and not self._hinted else ""
        self._hinted = True
        yield from self._wrapped(f"{label}: {size}{hint}", "reasoning")

    def _text(self, label: str, content: Any, kind: str = "") -> Iterator[Line]:
        first, *more = text_of(content).splitlines() or [""]
        found = list(self._wrapped(f"{label}: {first}", kind))
        for line in more:
            found += [each.indented(2) for each in self._wrapped(line, kind if kind in ("reasoning", "error") else "")]
        yield from self._limited(found)

    def _limited(self, found: Sequence[Line]) -> Iterator[Line]:
        view = self.view
        most = len(found) if view.lines is None else view.lines
        if view.long_from is not None and self._number >= view.long_from:
            most = max(most, view.long_lines)
        yield from found[:most]
        if len(found) > most:
            hint = f" (--turn {self._number or 1} shows them)" if self.view.hints else ""
            for line in self._wrapped(f"... {len(found) - most} more lines{hint}", "note"):
                yield line.indented(2)

    def _wrapped(self, text: str, kind: str) -> Iterator[Line]:
        for piece in wrapped(text, self.view.width - INDENT):
            yield Line.of(piece, kind)


def transcript(outcome: RolloutOutcome, runs: Sequence[ToolRun], chats: Chats = ()) -> Iterator[str]:
    """Yield the lines of an outcome's samples, and then the lines about its end.

    `chats` are the requests with their replies. If a sample's chats branch, each branch is shown separately.
    """
    timed = [run for run in runs if run.latency is not None]
    for name, sample in (outcome.samples or {"no chat": Sample()}).items():
        tools = {(0, run.call_id): ToolEnd(run.latency) for run in timed if run.sample in ("", name)}
        yield from sample_lines(name, sample, chats, Conversation(sample.messages, tools=tools))
        for line in reward_lines(sample, several=len(outcome.samples) > 1):
            yield printable(f"  {line}")
    metrics = outcome.metrics
    counts = f"{counted(metrics.num_llm_calls, 'turn')}, {counted(metrics.num_tool_calls, 'tool call')}"
    yield f"{outcome.status}: {counts}, {reward_text(outcome)}, {metrics.total_latency_ms / 1000:.2f} s"
    if outcome.failure:
        for frame in outcome.failure.frames:
            yield printable(f"  {frame.file}:{frame.line} in {frame.function}: {frame.code}")


def sample_lines(name: str, sample: Sample, chats: Chats, known: Conversation) -> Iterator[Line]:
    """Yield the lines of a sample's conversation, and of each of its branches.

    `chats` are the answered chats of all samples. `known` has the sample's messages, tool results and remarks.
    """
    heading = f"conversation ({', '.join([name, *_origin(sample)])})"
    for piece in wrapped(heading, known.view.width):
        yield Line.of(piece, "head")
    for first, numbers, messages in _branches([chat for chat in chats if chat[0].sample == name], known.messages):
        if first > 1:
            yield Line.of(f"-- chat {first} begins another branch --", "note", 2)
        part = Conversation(messages, numbers, known.tools, known.notes, known.view)
        for line in part.lines():
            yield line.indented(2)


def _origin(sample: Sample) -> Iterator[str]:
    """Yield a sample's policy and parent, and notes if it is not trained on or was cut."""
    if sample.policy:
        yield f"policy {sample.policy}"
    if sample.parent is not None:
        chat = f" chat {sample.parent.chat_number}" if sample.parent.chat_number else ""
        yield f"from {sample.parent.sample}{chat}"
    if sample.train is False:
        yield "not trained on"
    if sample.cut:
        yield f"cut: {sample.cut}"


def reward_lines(sample: Sample, *, several: bool) -> Iterator[str]:
    """Yield the rewards of a sample and its chats. The reward of a single sample is left to the last line."""
    if (several and sample.reward is not None) or sample.reward_components:
        yield _graded(sample.reward, sample.reward_components)
    for chat in sample.chat_rewards:
        yield f"chat {chat.chat_number}: {_graded(chat.reward, chat.reward_components)}"


def _graded(reward: float | None, components: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in components.items())
    return ("no reward" if reward is None else f"reward {reward:g}") + (f" ({parts})" if parts else "")


def _branches(chats: Chats, messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Numbers, Messages]]:
    """Yield each branch: the number of its first chat, its replies, and its messages that no earlier branch shows.

    The replies map the index of each reply to the number of its chat; None if no chat is known. `messages` is the
    conversation that the agent reported. It replaces the branch whose messages it starts with.
    """
    begins: dict[int, int] = {}  # newest chat of a branch -> its first chat
    known: dict[int, int] = {}  # first chat of a branch -> the number of messages that an earlier branch shows
    whole: dict[int, Messages] = {}
    replies: dict[int, dict[int, int]] = {}  # first chat of a branch -> {index of a reply: number of its chat}
    for request, reply in chats:
        number, history = request.chat_number, [*request.messages, reply]
        first = begins.pop(request.parent_chat, number)
        if first == number:
            known[first] = request.prefix_len
        begins[number], whole[first] = first, history
        replies.setdefault(first, {})[len(history) - 1] = number
    if not whole:
        yield 1, None, messages
        return
    for first in reversed(whole):
        if len(whole) == 1 or list(messages[: len(whole[first])]) == whole[first]:
            whole[first] = messages
            break
    for first, shown in whole.items():
        start = known[first] if len(whole) > 1 else 0
        numbers = {index - start: number for index, number in replies[first].items()}
        yield first if len(whole) > 1 else 1, numbers, shown[start:]
