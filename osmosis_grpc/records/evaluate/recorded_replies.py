"""Answers chats from the journal of an earlier run, so that you can repeat the run without a model."""

from collections import OrderedDict
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from osmosis_grpc.engine.recorded_chats import Diverged, Recording
from osmosis_grpc.protocol.errors import CallError, FailedPrecondition
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message, TrajectoryEvent, events, jsontext
from osmosis_grpc.protocol.wire.status import from_code
from osmosis_grpc.records.evaluate.errors import RunError
from osmosis_grpc.records.evaluate.run_folder import RunFolder
from osmosis_grpc.records.reading.message_text import text_of
from osmosis_grpc.storage import JournalError, Reader
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.storage.journal.stored_rollouts import read_on_thread
from osmosis_grpc.supervise import SYSTEM

COMPARED = ("messages", "tools", "parent_chat", "purpose", "policy")
CACHED = 256
"""How many rows' recordings are kept in memory."""
MOST_CHARS = 80
"""The most characters that an error shows of a message."""


class RecordedReplies:
    """A policy with the replies of a run. Raises RunError if the folder has no journal.

    A chat that failed in the run fails again. A chat that the run did not record raises FailedPrecondition.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._rows: OrderedDict[str, _Recorded] = OrderedDict()
        try:
            Reader.look(folder.path).close()
        except JournalError as error:
            raise RunError(str(error)) from None

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        row = request.rollout_id.rpartition("-")[2]
        recorded = self._rows.get(row)
        if recorded is None:
            name = self._folder.rollout_id(row)
            read = await read_on_thread(SYSTEM, self._folder.path / FILE, lambda reader: _newest(reader, name))
            recorded = self._rows[row] = _Recorded(read)
            if len(self._rows) > CACHED:
                self._rows.popitem(last=False)
        chat = f"chat {request.chat_number} of sample {request.sample} of row {row}"
        try:
            return recorded.reply(request)
        except Diverged:
            other = ", ".join(recorded.differing(request))
            problem = f"{chat} is not the chat that {self._folder.path} has: other {other}"
        except KeyError:
            problem = f"{self._folder.path} has no reply to {chat}"
        raise FailedPrecondition(f"{problem}; run it without --replay")


def _newest(reader: Reader, rollout_id: str) -> list[TrajectoryEvent]:
    """Return the events of a rollout's newest attempt, or [] if there is no such rollout."""
    attempts = [entry.init.request.attempt for entry in reader.find(rollout_id)]
    return list(reader.trajectory(rollout_id, max(attempts))) if attempts else []


class _Recorded:
    """The replies and the failures of one row's chats."""

    def __init__(self, trajectory: list[TrajectoryEvent]) -> None:
        trajectory = [_as_asked(event) for event in trajectory]
        self._recording = Recording(trajectory)
        self._asked: dict[tuple[str, int], events.ChatRequested] = {}
        self._failed: dict[tuple[str, int], CallError] = {}
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.ChatRequested):
                self._asked[kind.sample, kind.chat_number] = kind
            elif isinstance(kind, events.ChatFailed) and not kind.will_retry:
                error = from_code(kind.code, kind.message)
                # A retry would get the same recorded error, so make it final.
                final = FailedPrecondition(kind.message) if error.retryable else error
                self._failed[kind.sample, kind.chat_number] = final

    def reply(self, request: ChatRequest) -> ChatResponse:
        """Return a recorded reply or raise the recorded error. Raises Diverged, or KeyError if there is neither."""
        found = self._recording.reply(_question(request))
        if found is None:
            raise self._failed[request.sample, request.chat_number]
        return found.response

    def differing(self, request: ChatRequest) -> list[str]:
        """Return what differs between a chat and the recorded one: messages, tools, names of parameters and so on."""
        asked, before = _question(request), self._asked[request.sample, request.chat_number]
        names = sorted(asked.params.keys() | before.params.keys())
        params = [name for name in names if asked.params.get(name) != before.params.get(name)]
        fields = [name for name in COMPARED if getattr(asked, name) != getattr(before, name)]
        return [*(_changed(name, getattr(before, name), getattr(asked, name)) for name in fields), *params]


def _changed(name: str, before: Any, now: Any) -> str:
    """Return the name of a field that differs. For messages, describe the first one that differs."""
    if name != "messages":
        return name.replace("_", " ")
    pairs = enumerate(zip_longest(before, now), start=1)
    number, (then, message) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    texts = ["not there" if each is None else repr(_text(each)[:MOST_CHARS]) for each in (then, message)]
    role = (message or then).get("role")
    return f"messages (of the new ones, number {number} from {role} was {texts[0]} and is {texts[1]})"


def _text(message: Message) -> str:
    return text_of(message.get("content")) or jsontext.render(message.get("tool_calls"))


def _as_asked(event: TrajectoryEvent) -> TrajectoryEvent:
    """Drop the parameters that the agent passed from an event, so that only those that the policy got remain."""
    kind = event.kind
    if not isinstance(kind, events.ChatRequested) or kind.passed is None:
        return event
    return replace(event, kind=replace(kind, passed=None))


def _question(request: ChatRequest) -> events.ChatRequested:
    return events.ChatRequested(
        sample=request.sample,
        chat_number=request.chat_number,
        parent_chat=request.parent_chat,
        messages=request.messages[request.prefix_len :],
        params=request.params,
        tools=request.tools if request.tools_overridden else None,
        purpose=request.purpose,
        policy=request.policy,
    )
