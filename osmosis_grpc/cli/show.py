"""The show command: prints one rollout as text for people, or as records.

history.py rebuilds the rollout from its events, and rollout_record.py makes its records.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.recorded import named
from osmosis_grpc.cli.screen import Line, Screen, wrapped
from osmosis_grpc.cli.source import Source, read_source, stopped_text
from osmosis_grpc.cli.transcript import Conversation, View, reward_lines, sample_lines
from osmosis_grpc.protocol.types import Failure, FailureReason, OutcomeStatus, RolloutInfo, Sample, Segment
from osmosis_grpc.records.reading.event_text import failure_text, one_line
from osmosis_grpc.records.reading.history import MAIN, Chat, History, ToolCall, by_tool, history_of
from osmosis_grpc.records.reading.phrases import INTERRUPTED, counted, pinned_text, reward_text, split_text
from osmosis_grpc.records.reading.rollout_record import rollout_record, turn_record
from osmosis_grpc.serve.json_output import Records, usage_error

MOST_LINES = 12
"""A message shows at most this many lines. --turn shows all lines of a turn."""
MOST_CHARS = 1000
"""An annotation shows at most this many characters."""
MOST_FAILING_LINES = 40
"""A message in the turn that failed shows at most this many lines."""
BAD = (OutcomeStatus.FAILED, OutcomeStatus.DEADLINE_EXCEEDED)
"""The command exits with 1 for these statuses."""


def token_lines(sample: Sample, width: int) -> Iterator[Line]:
    """Yield the lines about a sample's tokens. The ids of a mask run are cut at `width` columns."""
    if not sample.segments:
        yield Line.of(f"no tokens{f': {sample.not_trainable_reason}' if sample.not_trainable_reason else ''}", "note")
    for number, segment in enumerate(sample.segments, 1):
        chats = ", ".join(map(str, segment.chats))
        text = f"segment {number}: {counted(len(segment.ids), 'token')}, {segment.sampled} sampled, turns {chats}"
        text += ", dropped by the agent" if segment.dropped else ""
        versions = ", ".join(f"{span.version} ({span.tokens})" for span in segment.versions if span.version)
        for piece in wrapped(text + (f", versions {versions}" if versions else ""), width):
            yield Line.of(piece, "turn")
        why = split_text(segment)
        for piece in wrapped(f"a new segment, because {why}", width - 2) if why else ():
            yield Line.of(piece, "note", 2)
        yield from (line.indented(2) for line in _runs(segment, width - 2))


def _runs(segment: Segment, width: int) -> Iterator[Line]:
    start = used = 0
    for index, length in enumerate(segment.mask_runs):
        of_policy = index % 2 == 1
        ids = segment.ids[start : start + length]
        label = f"{start:>6} {'sampled' if of_policy else 'prompt ':7} {length:>6}"
        if of_policy and length:
            label += f", mean logprob {segment.logprobs[used : used + length].mean():.3f}"
            used += length
        start += length
        if length:
            text = f"{label}: {' '.join(map(str, ids[:40].tolist()))}"
            cut = text if len(text) <= width and length <= 40 else text[: width - 4].rpartition(" ")[0] + " ..."
            yield Line.of(cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parts of a rollout that the command shows."""

    turn: int | None = None
    sample: str | None = None
    tokens: bool = False
    reasoning: bool = False


class RolloutText:
    """The text of one rollout, with the wanted parts."""

    def __init__(
        self, info: RolloutInfo, history: History, wanted: Wanted, screen: Screen, *, now: float, stopped: bool = False
    ) -> None:
        """Let the times of an unfinished rollout end at `now`, in Unix seconds. If `stopped`, no process runs it."""
        self._state = INTERRUPTED if stopped and info.end_time is None else str(info.state)
        self._info = info
        self._history = history
        self._wanted = wanted
        self._screen = screen
        self._now = now
        self._ended = info.end_time is not None
        samples = history.samples(info.outcome)
        chosen = {name: each for name, each in samples.items() if wanted.sample in (None, name)}
        self._known = list(samples)
        self.samples: dict[str, Sample] = chosen
        self._view = View(messages=None, lines=MOST_LINES, width=screen.width, reasoning=wanted.reasoning, hints=True)

    def problem(self) -> str:
        """Return why there is nothing to show, or "" if there is something."""
        wanted, rollout_id = self._wanted, self._info.rollout_id
        if wanted.sample is not None and not self.samples:
            return f"rollout {rollout_id} has no sample {wanted.sample}; it has: {', '.join(self._known) or 'none'}"
        if wanted.turn is not None and not self.turns():
            asked = ", ".join(f"{sample} {number}" for sample, number in self._history.chats)
            return f"rollout {rollout_id} has no turn {wanted.turn}; it has: {asked or 'none'}"
        return ""

    def lines(self) -> Iterator[Line]:
        """Yield the lines for people."""
        yield from self._head()
        if self._wanted.turn is not None:
            for chat in self.turns():
                yield from self._turn(chat)
            return
        for name, sample in self.samples.items():
            yield Line()
            yield from self._conversation(name, sample)
            if self._wanted.tokens:
                yield from (line.indented(2) for line in token_lines(sample, self._screen.width - 2))
        yield Line()
        yield from self._end()

    def _head(self) -> Iterator[Line]:
        info, request = self._info, self._history.request
        version = f" version {self._history.agent_version[:12]}" if self._history.agent_version else ""
        yield from self._wrapped(
            f"rollout {info.rollout_id}, attempt {info.attempt}, agent loop {info.agent_loop}{version}", "head"
        )
        parts = [time.strftime("accepted %Y-%m-%d %H:%M:%SZ", time.gmtime(info.accept_time))]
        if info.end_time is not None:
            parts.append(f"ended {info.end_time - info.accept_time:.2f} s later")
        if info.group is not None:
            size = f" of {info.group.size}" if info.group.size else ""
            parts.append(f"group {info.group.id}, {info.group.index + 1}{size}")
        if info.fork is not None:
            parts.append(f"forked from {info.fork}")
        if request is not None and request.evaluation:
            parts.append("an evaluation")
        yield from self._wrapped(", ".join(parts))
        if request is not None and request.label is not None:
            yield self._one_line(f"label: {request.label}")

    def _conversation(self, name: str, sample: Sample) -> Iterator[Line]:
        history = self._history
        now = None if self._ended else self._now
        view = replace(self._view, long_from=self._failing_turn(name))
        known = Conversation(sample.messages, tools=history.tool_ends(name, now), notes=history.notes(name), view=view)
        yield from sample_lines(name, sample, history.answered(), known)
        for chat in history.chats.values():
            if chat.asked.sample == name and chat.answered is None:
                yield from (line.indented(2) for line in self._open_chat(chat))
        several = len(self._known) > 1
        for line in reward_lines(sample, several=several):
            yield from self._wrapped(line, "head", indent=2)

    def _open_chat(self, chat: Chat) -> Iterator[Line]:
        number = chat.asked.chat_number
        for failure in chat.failures:
            again = ", asked again" if failure.will_retry else ""
            yield from self._wrapped(f"{number} assistant failed: {failure.message}{again}", "error")
        if chat.ended is None:
            waited = "was not answered" if self._ended else f"is waited for, for {self._now - chat.began:.1f} s"
            yield Line.of(f"{number} assistant: the reply {waited}", "note")

    def _end(self) -> Iterator[Line]:
        """Yield the annotations, the logged events, the times, the rewards, and how the rollout ended."""
        info, history = self._info, self._history
        outcome = info.outcome
        now = info.end_time if info.end_time is not None else self._now
        for annotated in history.annotated:
            text = one_line(annotated)
            yield from self._wrapped(text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 4]} ...")
        for logged in history.logged:
            yield self._one_line(one_line(logged))
        times = history.times(now, outcome)
        parts = [("queue", times.queue), ("model", times.model), ("tools", times.tools), ("agent", times.agent)]
        split = ", ".join(f"{name} {value:.2f} s{_share(value, times.total)}" for name, value in parts)
        if times.restart:
            split += f", server away {times.restart:.2f} s{_share(times.restart, times.total)}"
        yield from self._wrapped(f"time {times.total:.2f} s: {split}")
        ran = history.ran_until(now, outcome)
        for name, tools in by_tool(history.tools, ran):
            yield from self._wrapped(_tool_text(name, tools, ran))
        if outcome is None and self._ended:
            yield from self._wrapped(f"{info.state}: it has no outcome", "bad")
            return
        if outcome is None:
            doing = info.activity
            since = self._now - doing.start_time
            yield from self._wrapped(f"{self._state}: {doing.description}, for {max(0.0, since):.1f} s", "bad")
            return
        metrics = outcome.metrics
        calls = len(history.tools) or metrics.num_tool_calls
        yield from self._wrapped(
            f"{counted(len(history.chats), 'turn')}, {counted(calls, 'tool call')}, "
            f"{metrics.prompt_tokens} prompt tokens, {metrics.response_tokens} response tokens"
        )
        if outcome.reward is not None or not outcome.failure:
            components = ", ".join(f"{name} {value:g}" for name, value in outcome.reward_components.items())
            yield from self._wrapped(reward_text(outcome) + (f" ({components})" if components else ""), "head")
        if outcome.failure is None:
            kind = "good" if outcome.status is OutcomeStatus.COMPLETED else "bad"
            cancelled = outcome.status is OutcomeStatus.CANCELLED and history.cancel_reason
            why = f": {history.cancel_reason}" if cancelled else ""
            yield from self._wrapped(f"{outcome.status} ({outcome.finish_reason}){why}", kind)
        else:
            yield from self._failure(outcome.status, outcome.failure)

    def _failure(self, status: OutcomeStatus, failure: Failure) -> Iterator[Line]:
        """Yield why and where a rollout failed. The conversation above ends with the turn that failed."""
        reason = ", ".join(filter(None, [str(failure.reason), failure.boundary, "retryable" * failure.retryable]))
        first, *more = failure_text(failure).splitlines() or [""]
        where = f" at {failure.where}" if failure.where else ""
        yield Line()
        yield from self._wrapped(f"{status}{where}: {first}", "bad")
        for line in more[:MOST_FAILING_LINES]:
            yield from self._wrapped(line, indent=2)
        known = isinstance(failure.reason, FailureReason)
        help_text = f"; see osmosis-grpc docs {failure.reason}" if known else ""
        for piece in wrapped(f"reason {reason}{help_text}", self._screen.width - 2):
            yield Line.of(piece, "note", 2)
        for cause in failure.causes[1:]:
            yield from self._wrapped(f"caused by {cause.type}: {cause.message}", indent=2)
        for frame in failure.frames:
            text = f"{frame.file}:{frame.line} in {frame.function}: {frame.code}"
            yield from self._wrapped(text, indent=2)

    def _failing_turn(self, name: str) -> int | None:
        """Return the chat from which on a sample is shown in detail, because the rollout failed there, or None."""
        outcome, history = self._info.outcome, self._history
        if outcome is None or outcome.failure is None or not history.last or history.last[0] != name:
            return None
        called = [tool.chat_number for tool in history.tools if tool.sample == name]
        return min([history.last[1], *called[-1:]])

    def turns(self) -> list[Chat]:
        """Return the wanted chats."""
        turn, sample = self._wanted.turn, self._wanted.sample
        return [
            chat
            for chat in self._history.chats.values()
            if turn in (None, chat.asked.chat_number) and sample in (None, chat.asked.sample)
        ]

    def _turn(self, chat: Chat) -> Iterator[Line]:
        """Yield a whole turn: the new messages, the parameters, the reply, and the results of its tools."""
        asked = chat.asked
        yield Line()
        yield Line.of(f"turn {_turn_name(*chat.name)}", "head")
        if asked.parent_chat:
            yield Line.of(f"it continues turn {asked.parent_chat}; these messages are new:", "note", 2)
        whole = replace(self._view, lines=None, reasoning=True)
        for line in Conversation(asked.messages, {}, view=whole).lines():
            yield line.indented(2)
        about = {**asked.params, **({"policy": asked.policy} if asked.policy else {})}
        if about:
            text = "asked with " + ", ".join(f"{name} {value}" for name, value in about.items())
            text += f"; {pinned_text(asked)}" if asked.passed is not None else ""
            yield from self._wrapped(text, "note", indent=2)
        yield from (line.indented(2) for line in self._reply(chat))
        if chat.answered is not None:
            usage = chat.answered.response.usage or {}
            counts = ", ".join(f"{name} {value}" for name, value in usage.items() if isinstance(value, int))
            if counts:
                yield from self._wrapped(f"usage: {counts}", "note", indent=2)

    def _reply(self, chat: Chat) -> Iterator[Line]:
        """Yield the whole reply of a chat with the results of its tools."""
        if chat.answered is None:
            yield from self._open_chat(chat)
            return
        name, number = chat.name
        view = replace(self._view, lines=None, reasoning=True)
        messages = [chat.answered.response.message, *self._history.tool_messages(chat, self.samples)]
        now = None if self._ended else self._now
        tools = self._history.tool_ends(name, now)
        yield from Conversation(messages, {0: number}, tools, self._history.notes(name), view).lines()

    def _wrapped(self, text: str, kind: str = "", indent: int = 0) -> Iterator[Line]:
        for piece in wrapped(text, self._screen.width - 4):
            yield Line.of(piece, kind, indent)

    def _one_line(self, text: str) -> Line:
        return Line.of(self._screen.fitted(text.replace("\n", " ")))


def _tool_text(name: str, tools: Sequence[ToolCall], now: float) -> str:
    """Return how often a tool was called, how long its calls took, and which call was slowest."""
    slowest = max(tools, key=lambda tool: tool.seconds(now))
    failed = sum(bool(tool.returned and tool.returned.error) for tool in tools)
    running = sum(tool.returned is None for tool in tools)
    parts = [counted(len(tools), "call"), f"{sum(tool.seconds(now) for tool in tools):.3f} s"]
    if len(tools) > 1:
        place = _turn_name(slowest.sample, slowest.chat_number)
        parts.append(f"slowest {slowest.seconds(now):.3f} s in turn {place}")
    parts += [f"{failed} raised"] * bool(failed) + [f"{running} did not return"] * bool(running)
    return f"tool {name}: {', '.join(parts)}"


def _turn_name(sample: str, number: int) -> str:
    return str(number) if sample == MAIN else f"{number} of {sample}"


def _share(part: float, whole: float) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole > 0 else ""


def run_show(rollout: str, attempt: int | None, wanted: Wanted, options: SourceOptions, *, json: bool) -> int:
    """Print a rollout, and return the exit code."""

    async def read(source: Source, out: Records) -> int:
        info = await named(source, rollout, attempt or 0)
        history = await history_of(source.events(info.rollout_id, info.attempt))
        as_of = await source.as_of()
        screen = Screen.of(out)
        shown = RolloutText(
            info, history, wanted, screen, now=time.time() if as_of is None else as_of, stopped=as_of is not None
        )
        if problem := shown.problem():
            usage_error("show", problem)
        if wanted.turn is None:
            out.write("rollout", **rollout_record(info, history, shown.samples, as_of=as_of, tokens=wanted.tokens))
        for chat in shown.turns():
            out.write("turn", **turn_record(info, history, chat, tokens=wanted.tokens))
        for line in shown.lines():
            screen.say(line)
        if as_of is not None and (info.end_time is None or info.undelivered):
            for piece in wrapped(stopped_text(source.where, as_of), screen.width):
                screen.say(piece, "note")
        return int(info.outcome is not None and info.outcome.status in BAD)

    return read_source("show", options, read, json=json)
