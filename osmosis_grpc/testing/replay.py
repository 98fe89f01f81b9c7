"""Runs an agent loop on a recording, and finds where it differs from the recording.

The agent loop runs in this process, on the real engine. The recording replaces the model, so nothing is sampled.
"""

import asyncio
import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, NoReturn

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.protocol.errors import Aborted
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    EventKind,
    InitRequest,
    OutcomeStatus,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
    jsontext,
)
from osmosis_grpc.protocol.wire.status import from_code
from osmosis_grpc.records.local_host import ONE, LocalHost, local_peer

WIDTH = 100
"""The most characters of a line of a difference."""
MESSAGE = 4 * WIDTH
"""A message with at most this many characters is shown on one line."""
LINES = 40
"""The most lines of a difference that are shown."""
STOPPED = {"until_turn": "stopped at --until-turn", "recording_ended": "the recording ends with the last chat"}
"""The text for each reason why a replay stopped early."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference: where it is, and a diff from the recorded text to the new text."""

    where: str
    diff: list[str]

    @classmethod
    def of(cls, where: str, recorded: Any, now: Any) -> "Difference":
        """Return the difference between two JSON values. `where` is their place."""
        found = list(difflib.unified_diff(_lines(recorded), _lines(now), "recorded", "now", n=2, lineterm=""))
        return cls(where, found if len(found) <= LINES else [*found[:LINES], f"... {len(found) - LINES} lines more"])


@dataclass(slots=True)
class Row:
    """One chat of the replay."""

    sample: str
    chat_number: int
    difference: Difference | None = None
    tools: list[str] = field(default_factory=list)


class Recorded:
    """What the journal recorded about all runs of a rollout. If a chat was recorded several times, the last counts."""

    def __init__(
        self,
        request: RolloutRequest,
        agent_loop: str,
        outcome: RolloutOutcome | None,
        trajectory: Sequence[TrajectoryEvent],
    ) -> None:
        """Read a recording. `outcome` has all tokens, and is None before the end. `trajectory` has the events."""
        self.request = request
        self.agent_loop = agent_loop
        self.outcome = outcome
        self.questions: dict[tuple[str, int], events.ChatRequested] = {}
        self.ends: dict[tuple[str, int], EventKind] = {}
        self.original: ForkedChats | None = None
        """The chats that a fork takes from its original; None if the rollout is not a fork."""
        if request.fork is not None:
            kinds = (events.ChatRequested, events.ChatAnswered)
            recorded = (event for event in trajectory if isinstance(event.kind, kinds))
            self.original = ForkedChats(request.fork, (e for e in recorded if getattr(e.kind, "forked", True)))
            self.original.compares = False  # a different question is a difference of the replay
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.ChatRequested):
                self.questions[kind.sample, kind.chat_number] = kind
            elif isinstance(kind, events.ChatAnswered) or (
                # An aborted chat ends its rollout, and the agent sees no exception. Other failures raise in the agent.
                isinstance(kind, events.ChatFailed) and not kind.will_retry and kind.code != Aborted.code
            ):
                self.ends[kind.sample, kind.chat_number] = kind

    def reply(self, sample: str, number: int) -> ChatResponse:
        """Return the recorded reply of a chat, or raise its recorded error."""
        end = self.ends[sample, number]
        if isinstance(end, events.ChatFailed):
            raise from_code(end.code, end.message)
        assert isinstance(end, events.ChatAnswered)
        return end.response

    @property
    def cut(self) -> str:
        """Why the agent did not end by itself; empty if it did."""
        outcome = self.outcome
        if outcome is None:
            return "it has not ended"
        by_server = outcome.failure is not None and outcome.failure.boundary == "server"
        if (
            by_server
            or outcome.finish_reason == "trainer_lost"
            or outcome.status in (OutcomeStatus.CANCELLED, OutcomeStatus.DEADLINE_EXCEEDED)
        ):
            return f"it ended {outcome.status} ({outcome.finish_reason}), which was not its agent's doing"
        return ""


class _Stopped(Exception):
    """The replay stops before the agent ends. The text is the reason: until_turn or recording_ended."""


class _Replaying:
    """The trainer of the replay. It answers from the recording, and compares each chat with it."""

    def __init__(self, recorded: Recorded, until_turn: int | None, show: Callable[[Row], object]) -> None:
        self._recorded = recorded
        self._until = until_turn
        self._show = show
        self._shown = 0
        self._callers: dict[tuple[str, int], Row] = {}
        self.rows: list[Row] = []
        self.asked: dict[tuple[str, int], events.ChatRequested] = {}
        self.ended: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()

    def see(self, event: TrajectoryEvent) -> None:
        """Receive the events of the replay."""
        kind = event.kind
        if isinstance(kind, events.ChatRequested):
            self.asked[kind.sample, kind.chat_number] = kind
        elif isinstance(kind, events.ChatAnswered) and kind.forked:
            self._row((kind.sample, kind.chat_number))
        elif isinstance(kind, events.ToolCalled) and self.rows:
            row = self._callers.get((kind.sample, kind.chat_number), self.rows[-1])
            row.tools.append(str((kind.call.get("function") or {}).get("name")))

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        """Compare the question, and return the recorded reply. Stop the replay at a chat that has none."""
        name = request.sample, request.chat_number
        if len(self.rows) == self._until:
            await self._stop("until_turn")
        self._row(name)
        if name not in self._recorded.ends or (
            self._recorded.cut and self._recorded.questions.keys() <= self.asked.keys()
        ):
            await self._stop("recording_ended")
        return self._recorded.reply(*name)

    def _row(self, name: tuple[str, int]) -> None:
        """Compare the question of a chat."""
        self.flush()
        row = Row(*name, difference=question_difference(self._recorded.questions.get(name), self.asked[name]))
        self.rows.append(row)
        self._callers[name] = row

    def flush(self) -> None:
        """Show the chats that were not shown before."""
        for row in self.rows[self._shown :]:
            self._show(row)
        self._shown = len(self.rows)

    async def _stop(self, why: str) -> NoReturn:
        """Report the stop. Then wait for the engine to close, which cancels the agent."""
        if not self.ended.done():
            self.ended.set_exception(_Stopped(why))
        while True:
            await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What an agent did on a recording, compared with the recording."""

    rows: list[Row]
    """The chats that it asked."""
    outcome: RolloutOutcome | None
    """The new outcome; None if the replay stopped before the agent ended."""
    stopped: str
    """Why the replay stopped early: until_turn or recording_ended; empty if it did not."""
    not_asked: list[tuple[str, int]]
    """The recorded chats that the agent did not ask, by sample and number."""
    why_not: str
    """Why the results were not compared; empty if they were."""
    result: list[Difference]
    """The differences between the results."""

    def differences(self) -> Iterator[tuple[tuple[str, int] | None, Difference]]:
        """Yield each difference with its chat, in the order of the chats. A difference of the result has None."""
        for row in self.rows:
            found = row.difference
            if found is not None:
                where = f"chat {row.sample} {row.chat_number}: {found.where}"
                yield (row.sample, row.chat_number), Difference(where, found.diff)
        for sample, number in self.not_asked:
            yield (sample, number), Difference(f"chat {sample} {number}: it was not asked", [])
        for each in self.result:
            yield None, Difference(f"result: {each.where}", each.diff)


async def compare(
    agent_loop: RolloutAgentLoop | Runnable,
    recorded: Recorded,
    until_turn: int | None = None,
    show: Callable[[Row], object] = lambda row: None,
) -> Comparison:
    """Run an agent on a recording, and compare what it does with the recording.

    Args:
        agent_loop: The agent.
        recorded: The rollout.
        until_turn: Stop after this many chats.
        show: Is called with every chat.

    Raises:
        Internal: get_tools() fails.
    """
    replaying = _Replaying(recorded, until_turn, show)
    config = replace(ONE, trainer_grace=0.0)
    stopped, outcome = "", None
    async with LocalHost(agent_loop, replaying.chat, config, sinks=[replaying.see]) as host:
        init, peer = InitRequest(request=recorded.request), local_peer(replaying.chat, replaying.ended)
        await host.engine.init(init, owner="", peer=peer, original=recorded.original)
        try:
            outcome = await replaying.ended
        except _Stopped as why:
            stopped = str(why)
    replaying.flush()
    asked = {(row.sample, row.chat_number) for row in replaying.rows}
    not_asked = [name for name in recorded.questions if name not in asked] if outcome is not None else []
    why_not = STOPPED.get(stopped, "") or recorded.cut
    compared = outcome is not None and recorded.outcome is not None and not why_not
    result = result_differences(recorded.outcome, outcome) if compared else []  # type: ignore[arg-type]
    return Comparison(replaying.rows, outcome, stopped, not_asked, why_not, result)


def question_difference(recorded: events.ChatRequested | None, now: events.ChatRequested) -> Difference | None:
    """Return the first difference between two questions, or None if they are equal."""
    if recorded is None:
        return Difference("chat", ["it was not asked when the rollout was recorded"])
    for where, before, after in _parts(recorded, now):
        if before is _ABSENT or after is _ABSENT or jsontext.canonical(before) != jsontext.canonical(after):
            return Difference.of(where, before, after)
    return None


def _parts(recorded: events.ChatRequested, now: events.ChatRequested) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each part of a question, its recorded value, and its new value. Each message is a part."""
    yield "parent_chat", recorded.parent_chat, now.parent_chat
    yield "purpose", recorded.purpose.value, now.purpose.value
    yield "policy", recorded.policy, now.policy
    for number, both in enumerate(zip_longest(recorded.messages, now.messages, fillvalue=_ABSENT), 1):
        yield f"message {number} of the new ones", *both
    yield "params", dict(recorded.agents_params), dict(now.agents_params)
    tools = [None if chat.tools is None else list(chat.tools) for chat in (recorded, now)]
    yield "tools", tools[0], tools[1]


def result_differences(recorded: RolloutOutcome, now: RolloutOutcome) -> list[Difference]:
    """Return the differences between two results: their status, rewards, messages and tokens."""
    found = []
    for where, before, after in (
        ("status", _status(recorded), _status(now)),
        ("reward", recorded.reward, now.reward),
        ("reward components", dict(recorded.reward_components), dict(now.reward_components)),
        ("final messages", list(recorded.messages), list(now.messages)),
        ("extra_fields", dict(recorded.extra_fields), dict(now.extra_fields)),
        ("samples", sorted(recorded.samples), sorted(now.samples)),
    ):
        if before != after:
            found.append(Difference.of(where, before, after))
    for name in sorted(recorded.samples.keys() & now.samples.keys()):
        one, other = recorded.samples[name], now.samples[name]
        before, after = (_sample_rewards(outcome, name) for outcome in (recorded, now))
        if before != after:
            found.append(Difference.of(f"rewards of sample {name}", before, after))
        if one.segments != other.segments or one.trainable != other.trainable:
            found.append(Difference.of(f"tokens of sample {name}", _tokens(one), _tokens(other)))
    return found


def _status(outcome: RolloutOutcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "status": str(outcome.status),
        "finish_reason": outcome.finish_reason,
        "failure": None if failure is None else {"boundary": failure.boundary, "message": failure.message},
    }


def _sample_rewards(outcome: RolloutOutcome, name: str) -> dict[str, Any]:
    """Return the rewards of a sample and its chats. Leave out those that a single sample shares with its rollout."""
    sample = outcome.samples[name]
    own = {"reward": sample.reward, "reward_components": dict(sample.reward_components)}
    return {**(own if len(outcome.samples) > 1 else {}), "chat_rewards": [asdict(each) for each in sample.chat_rewards]}


def _tokens(sample: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"trainable": sample.trainable, "why not": sample.not_trainable_reason}]
    for segment in sample.segments:
        ids, runs = " ".join(map(str, segment.ids.tolist())), " ".join(map(str, segment.mask_runs))
        logprobs = " ".join(f"{value:g}" for value in segment.logprobs.tolist())
        rows.append({"ids": ids, "mask_runs": runs, "logprobs": logprobs, "chats": list(segment.chats)})
    return rows


def _lines(value: Any) -> list[str]:
    """Return a JSON value as readable lines. Texts are not escaped, and long lines are wrapped."""
    if value is _ABSENT:
        return []
    if isinstance(value, str):
        lines = value.split("\n")
        return [line[start : start + WIDTH] for line in lines for start in range(0, len(line) or 1, WIDTH)]
    if isinstance(value, dict):
        found = []
        for key in sorted(value):
            inner = _lines(value[key])
            found += [f"{key}: {inner[0]}"] if len(inner) == 1 else [f"{key}:", *(f"  {line}" for line in inner)]
        return found or ["{}"]
    if isinstance(value, list | tuple):
        found = []
        for item in value:
            inner = _message(item) or _lines(item) or [""]
            found += [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
        return found or ["[]"]
    return [json.dumps(value)]


def _message(item: Any) -> list[str]:
    """Return a short message as one line of JSON, so that a diff shows it whole. Return [] for other values."""
    if not isinstance(item, dict) or "role" not in item:
        return []
    text = json.dumps(item, ensure_ascii=False, sort_keys=True)
    return [text] if len(text) <= MESSAGE else []
