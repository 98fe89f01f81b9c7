"""Builds the state of a rollout from a journal, with the same values as the engine would give."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from osmosis_grpc.protocol.types import (
    Activity,
    ChatResponse,
    Fork,
    Group,
    JournaledRollout,
    RolloutInfo,
    RolloutRequest,
    RolloutState,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.storage.journal.rows import RolloutRow


def ended_info(entry: JournaledRollout) -> RolloutInfo:
    """Return the state of an ended rollout in a journal."""
    activity = Activity("ended" if entry.settled else "delivering", entry.end_time or entry.accept_time)
    return _info_of(entry, entry.state, activity, undelivered=not entry.settled)


def settled_header(row: RolloutRow, group: Group | None = None, fork: Fork | None = None) -> RolloutInfo:
    """Return the state of a settled rollout from its row. A row lacks the group and the fork, and must be undamaged."""
    activity = Activity("ended", row.end_time or row.accept_time)
    return _info(row, row, RolloutState(row.state), activity, group=group, fork=fork)


def unfinished_info(entry: JournaledRollout, trail: Iterable[TrajectoryEvent]) -> RolloutInfo:
    """Return the state of an unfinished rollout in a journal. It comes from the events, because the row lacks it."""
    progress = Progress()
    for event in trail:
        progress.add(event)
    return progress.of(header(entry))


class Progress:
    """The progress of an unfinished rollout, accumulated from its events and described as the engine does."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._doing: dict[tuple[object, ...], Activity] = {}
        self._latest: Activity | None = None
        self._chats = self._response_tokens = self._prompt_tokens = 0
        self._time: float | None = None
        self._number = 0

    def add(self, event: TrajectoryEvent) -> None:
        """Add the next event."""
        kind = event.kind
        if isinstance(kind, events.Started | events.Resumed):
            self._start = event.time if self._start is None else self._start
            self._doing.clear()
            self._latest = Activity("agent", event.time)
        elif isinstance(kind, events.ChatRequested):
            words = f"chat {kind.sample} {kind.chat_number}"
            self._doing["chat", kind.sample, kind.chat_number] = Activity(words, event.time)
        elif isinstance(kind, events.ChatAnswered | events.ChatFailed):
            if isinstance(kind, events.ChatAnswered) or not kind.will_retry:
                self._doing.pop(("chat", kind.sample, kind.chat_number), None)
                self._latest = Activity("agent", event.time)
        elif isinstance(kind, events.ToolCalled):
            name = str((kind.call.get("function") or {}).get("name"))
            self._doing["tool", kind.sample, kind.call.get("id")] = Activity(f"tool {name}", event.time)
        elif isinstance(kind, events.ToolReturned):
            self._doing.pop(("tool", kind.sample, kind.tool_call_id), None)
            self._latest = Activity("agent", event.time)
        if isinstance(kind, events.ChatAnswered) and not kind.forked:
            self._chats += 1
            self._response_tokens += _tokens(kind.response)
            self._prompt_tokens += _prompt_tokens(kind.response)
        self._time, self._number = event.time, event.event_number

    def of(self, header: RolloutInfo) -> RolloutInfo:
        """Return the state of the rollout with this header."""
        latest = self._latest or Activity("queued", header.accept_time)
        return replace(
            header,
            state=RolloutState.QUEUED if self._start is None else RolloutState.RUNNING,
            activity=next(reversed(self._doing.values()), latest),
            chats=self._chats,
            response_tokens=self._response_tokens,
            prompt_tokens=self._prompt_tokens,
            progress_time=header.accept_time if self._time is None else self._time,
            start_time=self._start,
            last_event_number=self._number or header.last_event_number,
        )


def header(entry: JournaledRollout) -> RolloutInfo:
    """Return what is known about an unfinished rollout without its events."""
    return _info_of(entry, RolloutState.QUEUED, Activity("queued", entry.accept_time))


def damaged_info(entry: JournaledRollout, hint: str) -> RolloutInfo:
    """Return the state of an unfinished rollout whose rows are damaged. `hint` says what to do."""
    words = f"damaged: {entry.damage}; {hint}"
    return _info_of(entry, RolloutState.ACCEPTED, Activity(words, entry.accept_time))


def _tokens(response: ChatResponse) -> int:
    reported = (response.usage or {}).get("completion_tokens")
    return reported if isinstance(reported, int) else len(response.tokens.ids) if response.tokens is not None else 0


def _prompt_tokens(response: ChatResponse) -> int:
    reported = (response.usage or {}).get("prompt_tokens")
    if isinstance(reported, int):
        return reported
    return len(response.prompt_ids) + response.prompt_prefix if response.prompt_ids is not None else 0


def _info_of(entry: JournaledRollout, state: RolloutState, activity: Activity, **more: Any) -> RolloutInfo:
    request = entry.init.request
    return _info(entry, request, state, activity, group=request.group, fork=request.fork, outcome=entry.outcome, **more)


def _info(
    row: JournaledRollout | RolloutRow,
    names: RolloutRequest | RolloutRow,
    state: RolloutState,
    activity: Activity,
    **more: Any,
) -> RolloutInfo:
    summary = row.summary
    return RolloutInfo(
        rollout_id=names.rollout_id,
        attempt=names.attempt,
        agent_loop=row.agent_loop,
        state=state,
        activity=activity,
        accept_time=row.accept_time,
        start_time=row.start_time,
        end_time=row.end_time,
        last_event_number=row.last_event_number,
        reward=summary.reward,
        failure_reason=summary.failure_reason,
        failure_summary=summary.failure_summary,
        chats=summary.chats,
        response_tokens=summary.response_tokens,
        prompt_tokens=summary.prompt_tokens,
        finish_reason=summary.finish_reason,
        **more,
    )
