"""Makes the rollouts of a group comparable: their rewards, their times on one axis, and their turns side by side."""

import contextlib
import json
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from osmosis_grpc.protocol.types import Message, RolloutInfo
from osmosis_grpc.records.reading.history import MAIN, Chat, History
from osmosis_grpc.records.reading.message_text import mapping, mappings, reasoning_of, text_of
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.trainer.score_statistics import all_equal
from osmosis_grpc.viewer.annotations import Fate, fate_of
from osmosis_grpc.viewer.throughput import round_step
from osmosis_grpc.viewer.turns import Axis, Bar, calls_of

MOST_LANES = 64
"""The most rollouts that a page compares."""
MOST_CELLS = 1000
"""The most turns on a page, over all rollouts. At least 8 turns of each rollout are shown."""
MOST_TICKS = 4
"""The most divisions of a time axis."""
SLIVER = 2.0
"""The least width of a part of a bar, in units. It is small, because the lane of a long rollout has many parts."""
MARK = 6.0
VERSION_COLOURS = 6
"""The number of colours for policy versions in the style sheet."""
LINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout, without its messages."""

    sample: str
    number: int
    text: str
    tools: tuple[tuple[str, str], ...]
    """The tools that it calls, with their arguments as in turns.brief()."""
    reply: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a rollout's time, in Unix seconds. `version` is the policy version of a part `model`."""

    kind: str
    begin: float
    end: float | None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rollout of a group. It has no messages and no tokens."""

    info: RolloutInfo
    turns: tuple[Turn, ...]
    spans: tuple[Span, ...]
    delivered: float | None
    """When its delivery ended, in Unix seconds."""
    fate: Fate
    unused: tuple[tuple[str, str], ...]

    @property
    def reward(self) -> float | None:
        """The corrected reward, or else the reward of the outcome."""
        return self.info.reward if self.fate.reward is None else self.fate.reward


@dataclass(frozen=True, slots=True)
class TurnLine:
    """The turns with the same name, one of each rollout. It is None for a rollout without this turn."""

    name: str
    cells: tuple[Turn | None, ...]
    differs: bool
    """Whether it is the first line in which the replies differ."""
    letters: tuple[str, ...]
    """For the first differing turn, a letter for each reply; equal replies have equal letters."""


class RewardStatistics(ABC):
    """Statistics of the rewards of several rollouts."""

    __slots__ = ()

    @property
    @abstractmethod
    def rewards(self) -> list[float]:
        """The rewards that are set."""

    @property
    def mean(self) -> float | None:
        """The mean of the rewards."""
        return statistics.fmean(self.rewards) if self.rewards else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the rewards, with n - 1 in the denominator; None for fewer than two rewards."""
        return statistics.stdev(self.rewards) if len(self.rewards) > 1 else None


@dataclass(frozen=True, slots=True)
class Comparison(RewardStatistics):
    """The rollouts of a group, and the values that the page computes from all of them."""

    lanes: tuple[Lane, ...]
    now: float
    """The time as of which they are shown, in Unix seconds."""
    stopped: bool
    left_out: int = 0

    @property
    def open(self) -> bool:
        """Whether a server runs and a rollout is unfinished or undelivered."""
        return not self.stopped and any(each.info.end_time is None or each.info.undelivered for each in self.lanes)

    @property
    def rewards(self) -> list[float]:
        return [lane.reward for lane in self.lanes if lane.reward is not None]

    @property
    def no_variance(self) -> bool:
        """Whether all rollouts have ended, and all their rewards are the same."""
        ended = all(lane.info.end_time is not None for lane in self.lanes)
        return ended and len(self.rewards) > 1 and all_equal(self.rewards)

    @property
    def begin(self) -> float:
        """The first acceptance, in Unix seconds."""
        return min(lane.info.accept_time for lane in self.lanes)

    @property
    def end(self) -> float:
        """The end of the time axis, in Unix seconds."""
        return max(self.begin + 1e-3, *(time for lane in self.lanes for time in self._times(lane)))

    def _times(self, lane: Lane) -> Iterator[float]:
        info = lane.info
        yield self.now if info.end_time is None or info.undelivered else info.end_time
        yield from (time for time in (lane.delivered, lane.fate.consumed) if time is not None)

    @property
    def ticks(self) -> list[tuple[float, float]]:
        """Return the round times on the time axis: the position in percent, and the seconds."""
        length = self.end - self.begin
        step = round_step(length, MOST_TICKS)
        return [(round(100 * count * step / length, 2), count * step) for count in range(int(length / step) + 1)]

    @property
    def versions(self) -> list[str]:
        """The policy versions, in the order in which they were first used."""
        spans = sorted((span for lane in self.lanes for span in lane.spans if span.version), key=lambda it: it.begin)
        return list(dict.fromkeys(span.version for span in spans))

    def bars(self, lane: Lane) -> list[Bar]:
        """Return the time of a rollout as parts of a bar, on the time axis of all rollouts."""
        shades = {version: f" v{index % VERSION_COLOURS}" for index, version in enumerate(self.versions)}
        axis, marks = Axis(self.begin, self.end, SLIVER), Axis(self.begin, self.end, MARK)
        until = self.now if lane.info.end_time is None else lane.info.end_time
        bars = [
            axis.bar(span.kind + shades.get(span.version, ""), span.begin, until if span.end is None else span.end)
            for span in lane.spans
        ]
        times = {"delivered": lane.delivered, "consumed": lane.fate.consumed}
        return bars + [marks.bar(kind, time, time) for kind, time in times.items() if time is not None]

    def reward_bar(self, lane: Lane) -> list[Bar]:
        """Return the reward of a rollout as a bar from zero, on the scale of all rewards."""
        axis = Axis(min([0.0, *self.rewards]), max([0.0, *self.rewards]), SLIVER)
        if lane.reward is None or axis.begin == axis.end:
            return []
        return [axis.bar("reward" if lane.reward >= 0 else "reward below", *sorted((0.0, lane.reward)))]

    def lines(self) -> list[TurnLine]:
        """Return the turns side by side: those of sample main, then those of other samples."""
        found = [{(turn.sample, turn.number): turn for turn in lane.turns} for lane in self.lanes]
        names = sorted({name for turns in found for name in turns}, key=lambda name: (name[0] != MAIN, *name))
        first, lines = True, []
        for sample, number in names:
            cells = tuple(turns.get((sample, number)) for turns in found)
            letters = self._letters(cells) if first else ()
            differs = len(set(filter(None, letters))) > 1
            first = first and not differs
            name = str(number) if sample == MAIN else f"{sample} {number}"
            lines.append(TurnLine(name, cells, differs, letters if differs else ()))
        return lines

    def _letters(self, cells: Sequence[Turn | None]) -> tuple[str, ...]:
        """Return a letter for each reply. It is empty for a rollout that still waits for its reply."""
        known: dict[str | None, str] = {}
        letters = []
        for lane, cell in zip(self.lanes, cells, strict=True):
            reply = cell.reply if cell is not None else None
            if reply is None and lane.info.end_time is None:
                letters.append("")
            else:
                letters.append(known.setdefault(reply, chr(ord("A") + len(known) % 26)))
        return tuple(letters)


async def read_lanes(
    source: Source, rows: Sequence[RolloutInfo], known: Sequence[Lane], *, by_time: bool = False
) -> list[Lane]:
    """Return the rollouts of these rows in the order of their group or, with `by_time`, of their acceptance.

    A rollout in `known` is read again only if it has changed.
    """
    before = {(lane.info.rollout_id, lane.info.attempt): lane for lane in known}
    newest: dict[str, RolloutInfo] = {}
    for info in sorted(rows, key=lambda row: row.attempt):
        newest[info.rollout_id] = info
    ordered = sorted(
        newest.values(), key=lambda row: (row.group.index if row.group and not by_time else 0, row.accept_time)
    )
    lanes = []
    for info in ordered[:MOST_LANES]:
        lane = before.get((info.rollout_id, info.attempt))
        lanes.append(lane if lane is not None and lane.info == info else await _lane(source, info))
    return lanes


async def _lane(source: Source, row: RolloutInfo) -> Lane:
    info = await source.get(row.rollout_id, row.attempt)
    history = History()
    async with aclosing(source.events(row.rollout_id, row.attempt)) as trail:
        async for event in trail:
            history.add(event)
    return Lane(
        info=replace(row, outcome=None),
        turns=tuple(_turn(chat) for chat in history.chats.values()),
        spans=tuple(_spans(info, history)),
        delivered=history.delivered,
        fate=fate_of(history),
        unused=tuple(_unused(info, history)),
    )


def _turn(chat: Chat) -> Turn:
    reply = chat.answered.response.message if chat.answered is not None else None
    text = text_of(reasoning_of(reply)[1]) if reply is not None else ""
    if reply is None:
        text = chat.failures[-1].message if chat.failures else ""
    tools = tuple((name, given[:LINE_CHARS]) for name, given in calls_of(reply or {}))
    value = None if reply is None else _value(reply)
    return Turn(chat.asked.sample, chat.asked.chat_number, text[:LINE_CHARS], tools, value)


def _value(reply: Message) -> str:
    """Return a reply as a text to compare. It leaves out the ids of tool calls, which samplers make up."""
    functions = [mapping(call.get("function")) for call in mappings(reply.get("tool_calls"))]
    calls = [{name: _parsed(part) for name, part in function.items()} for function in functions]
    rest = {name: value for name, value in reply.items() if name != "tool_calls" and value not in (None, "", ())}
    return json.dumps([rest, calls], sort_keys=True, default=str)


def _parsed(text: Any) -> Any:
    with contextlib.suppress(ValueError, TypeError):
        return json.loads(text)
    return text


def _spans(info: RolloutInfo, history: History) -> Iterator[Span]:
    """Yield the parts of a rollout's time, including the delivery after its end."""
    started = history.started if history.started is not None else info.end_time
    yield Span("queue", info.accept_time, started)
    if history.earlier:
        yield Span("away", started or info.accept_time, history.began)
    for chat in history.chats.values():
        yield from _model_spans(chat, info.end_time)
    for tool in history.tools:
        yield Span("tools", tool.began, tool.ended or info.end_time)
    if info.end_time is not None and (history.delivered is not None or info.undelivered):
        yield Span("delivery", info.end_time, history.delivered)


def _model_spans(chat: Chat, end: float | None) -> Iterator[Span]:
    """Yield the time of a chat, divided among its policy versions by their numbers of tokens."""
    versions = chat.answered.response.versions if chat.answered is not None else ()
    total = sum(span.tokens for span in versions)
    if chat.ended is None or len(versions) < 2 or not total:
        yield Span("model", chat.began, chat.ended or end, versions[0].version if versions else "")
        return
    begin = chat.began
    for span in versions:
        until = begin + (chat.ended - chat.began) * span.tokens / total
        yield Span("model", begin, until, span.version)
        begin = until


def _unused(info: RolloutInfo, history: History) -> Iterator[tuple[str, str]]:
    outcome = info.outcome
    if outcome is None:
        return
    notes = [each.annotation for each in history.annotated]
    rewarded = [note for note in notes if note.reward is not None and not note.score_name]
    whole = any(note.advantage is not None for note in notes) or any(not note.sample for note in rewarded)
    named = {note.sample for note in rewarded}
    named |= {part.sample for note in notes for part in note.segments if len(part.advantages)}
    for name, sample in outcome.samples.items():
        if sample.train is False:
            yield name, "its agent says train=False"
        elif outcome.reward_of(name) is None and not whole and name not in named:
            yield name, "no reward and no advantage"
