"""Makes the state of a rollout from a journal, in the words of the engine."""

from collections.abc import Iterable
from dataclasses import replace

from osmosis_grpc.storage.journal.rows import RolloutRow
from osmosis_grpc.types import (
    Activity,
    ChatResponse,
    JournaledRollout,
    RolloutInfo,
    RolloutState,
    TrajectoryEvent,
    events,
)


def ended_info(entry: JournaledRollout) -> RolloutInfo:
    """Return the state of an ended rollout in a journal."""
    return _info(
        entry,
        entry.state,
        Activity("ended" if entry.settled else "delivering", entry.end_time or entry.accept_time),
        undelivered=not entry.settled,
    )


def settled_header(row: RolloutRow) -> RolloutInfo:
    """Return the state of a settled rollout from its sound row alone, without its group and its fork."""
    summary = row.summary
    return RolloutInfo(
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        agent_loop=row.agent_loop,
        state=RolloutState(row.state),
        activity=Activity("ended", row.end_time or row.accept_time),
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
    )


def unfinished_info(entry: JournaledRollout, trail: Iterable[TrajectoryEvent]) -> RolloutInfo:
    """Return the state of an unfinished rollout in a journal. Its row does not have it, so it comes from its events."""
    known = list(trail)
    starts = [event.time for event in known if isinstance(event.kind, events.Started | events.Resumed)]
    state = RolloutState.RUNNING if starts else RolloutState.QUEUED
    info = _info(entry, state, activity_of(known, entry.accept_time))
    kinds = [event.kind for event in known if isinstance(event.kind, events.ChatAnswered)]
    answered = [kind.response for kind in kinds if not kind.forked]
    return replace(
        info,
        chats=len(answered),
        response_tokens=sum(map(_tokens, answered)),
        prompt_tokens=sum(map(_prompt_tokens, answered)),
        progress_time=known[-1].time if known else entry.accept_time,
        start_time=starts[0] if starts else None,
        last_event_number=known[-1].event_number if known else entry.last_event_number,
    )


def damaged_info(entry: JournaledRollout, hint: str) -> RolloutInfo:
    """Return the state of an unfinished rollout whose rows are damaged. `hint` says what to do."""
    words = f"damaged: {entry.damage}; {hint}"
    return _info(entry, RolloutState.ACCEPTED, Activity(words, entry.accept_time))


def _tokens(response: ChatResponse) -> int:
    reported = (response.usage or {}).get("completion_tokens")
    return reported if isinstance(reported, int) else len(response.tokens.ids) if response.tokens is not None else 0


def _prompt_tokens(response: ChatResponse) -> int:
    reported = (response.usage or {}).get("prompt_tokens")
    if isinstance(reported, int):
        return reported
    return len(response.prompt_ids) + response.prompt_prefix if response.prompt_ids is not None else 0


def _info(
    entry: JournaledRollout, state: RolloutState, activity: Activity, *, undelivered: bool = False
) -> RolloutInfo:
    request, summary = entry.init.request, entry.summary
    return RolloutInfo(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        agent_loop=entry.agent_loop,
        state=state,
        activity=activity,
        group=request.group,
        accept_time=entry.accept_time,
        start_time=entry.start_time,
        end_time=entry.end_time,
        last_event_number=entry.last_event_number,
        undelivered=undelivered,
        outcome=entry.outcome,
        reward=summary.reward,
        failure_reason=summary.failure_reason,
        failure_summary=summary.failure_summary,
        chats=summary.chats,
        response_tokens=summary.response_tokens,
        prompt_tokens=summary.prompt_tokens,
        finish_reason=summary.finish_reason,
        fork=request.fork,
    )


def activity_of(trail: Iterable[TrajectoryEvent], accept_time: float) -> Activity:
    """Return what an unfinished rollout does, in the words of the engine, from its events."""
    doing: dict[tuple[object, ...], Activity] = {}
    latest = Activity("queued", accept_time)
    for event in trail:
        kind = event.kind
        if isinstance(kind, events.Started | events.Resumed):
            doing.clear()
            latest = Activity("agent", event.time)
        elif isinstance(kind, events.ChatRequested):
            words = f"chat {kind.sample} {kind.chat_number}"
            doing["chat", kind.sample, kind.chat_number] = Activity(words, event.time)
        elif isinstance(kind, events.ChatAnswered | events.ChatFailed):
            if isinstance(kind, events.ChatAnswered) or not kind.will_retry:
                doing.pop(("chat", kind.sample, kind.chat_number), None)
                latest = Activity("agent", event.time)
        elif isinstance(kind, events.ToolCalled):
            name = str((kind.call.get("function") or {}).get("name"))
            doing["tool", kind.sample, kind.call.get("id")] = Activity(f"tool {name}", event.time)
        elif isinstance(kind, events.ToolReturned):
            doing.pop(("tool", kind.sample, kind.tool_call_id), None)
            latest = Activity("agent", event.time)
    return next(reversed(doing.values()), latest)
