"""Describes events: in one line each, and as records."""

import json
from collections.abc import Callable
from typing import Any

from osmosis_grpc.protocol.types import EventKind, Failure, TrajectoryEvent, events
from osmosis_grpc.records.reading.history import sampled
from osmosis_grpc.records.reading.message_text import mapping, mappings, text_of
from osmosis_grpc.records.reading.phrases import counted, pinned_text, reward_text, split_text
from osmosis_grpc.records.reading.record_values import plain

HEAVY: dict[type, frozenset[str]] = {
    events.Accepted: frozenset({"digest"}),
    events.ChatAnswered: frozenset({"tokens", "prompt_ids", "prompt_extras", "prompt_prefix"}),
    events.Ended: frozenset({"messages", "begins", "segments", "chats"}),
}
"""The fields that records leave out, by kind of event. `show --tokens --json` prints the tokens."""


def name_of(kind: EventKind) -> str:
    """Return the name of an event's kind as in event.proto, such as chat_requested."""
    words = type(kind).__name__
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in words).lstrip("_")


def one_line(kind: EventKind) -> str:
    """Describe an event without line breaks. Control characters are not escaped."""
    return " ".join(_TEXTS[type(kind)](kind).split())


def _accepted(kind: events.Accepted) -> str:
    request = kind.init.request
    group = f", group {request.group.id}" if request.group is not None else ""
    fork = f", forked from {request.fork}" if request.fork is not None else ""
    return f"accepted: {counted(len(request.messages), 'message')}, {counted(len(kind.tools), 'tool')}{group}{fork}"


def _chat(kind: Any) -> str:
    return f"chat {kind.sample} {kind.chat_number}"


def _requested(kind: events.ChatRequested) -> str:
    newest = text_of(kind.messages[-1].get("content")) if kind.messages else ""
    pinned = f", {pinned_text(kind)}" if kind.passed is not None else ""
    return f"{_chat(kind)} asked: {counted(len(kind.messages), 'new message')}{pinned}: {newest}"


def _answered(kind: events.ChatAnswered) -> str:
    message, tokens = kind.response.message, sampled(kind)
    calls = [mapping(call.get("function")) for call in mappings(message.get("tool_calls"))]
    called = ", ".join(f"{function.get('name')} {function.get('arguments')}" for function in calls)
    said = text_of(message.get("content")) if message.get("content") else ""
    size = "" if tokens is None else f", {counted(tokens, 'token')}"
    text = " ".join(filter(None, [said, f"calls {called}" if called else ""]))
    how = "recorded in the original" if kind.forked else f"answered in {kind.latency:.2f} s"
    return f"{_chat(kind)} {how}{size}: {text}"


def _chat_failed(kind: events.ChatFailed) -> str:
    return f"{_chat(kind)} failed{', it is asked again' if kind.will_retry else ''}: {kind.message}"


def _tool_called(kind: events.ToolCalled) -> str:
    function = mapping(kind.call.get("function"))
    return f"tool {function.get('name')} called: {function.get('arguments')}"


def _tool_returned(kind: events.ToolReturned) -> str:
    result = kind.error or (text_of(kind.message.get("content")) if kind.message else "")
    return f"tool {kind.name} {'raised' if kind.error else 'returned'} in {kind.latency:.3f} s: {result}"


def _logged(kind: events.Logged) -> str:
    data = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in kind.data.items())
    return f"log {kind.name}{f': {data}' if data else ''}"


def _sample_added(kind: events.SampleAdded) -> str:
    parent = f", from {kind.parent.sample} {kind.parent.chat_number}" if kind.parent is not None else ""
    return f"sample {kind.sample} began{f', policy {kind.policy}' if kind.policy else ''}{parent}"


def _segment_closed(kind: events.SegmentClosed) -> str:
    text = f"segment {kind.index + 1} of {kind.sample}: {counted(kind.tokens, 'token')}, {kind.sampled_tokens} sampled"
    why = split_text(kind)
    return f"{text}; it began because {why}" if why else text


def _graded(kind: events.Graded) -> str:
    chat = f" chat {kind.chat_number}" if kind.chat_number else ""
    part = f" {kind.name}" if kind.name else ""
    return f"reward{part} of {kind.sample or 'the rollout'}{chat}: {kind.reward}"


def _ended(kind: events.Ended) -> str:
    outcome, failure = kind.outcome, kind.outcome.failure
    if failure is not None:
        return f"{outcome.status}{f' at {failure.where}' if failure.where else ''}: {failure_text(failure)}"
    return f"{outcome.status} ({outcome.finish_reason}), {reward_text(outcome)}"


def failure_text(failure: Failure) -> str:
    """Return the type of a failure's exception, followed by the message."""
    kind = failure.causes[0].type if failure.causes else ""
    return failure.message if not kind or failure.message.startswith(kind) else f"{kind}: {failure.message}"


def _delivered(kind: events.Delivered) -> str:
    tries = counted(kind.tries, "try") if kind.tries <= 1 else f"{kind.tries} tries"
    return f"delivered: {kind.receipt or kind.given_up or 'no receipt'}, {tries}"


def _annotated(kind: events.Annotated) -> str:
    given = kind.annotation
    name = given.score_name
    parts = {
        f"score {name}" if name else "reward": None if given.reward is None else f"{given.reward:g}",
        "advantage": None if given.advantage is None else f"{given.advantage:g}",
        "trained": given.trained,
        "dropped": given.dropped_reason,
        "step": given.weight_step,
        "labels": "" if name else " ".join(given.labels),
        "note": given.note,
    }
    text = ", ".join(f"{name} {value}" for name, value in parts.items() if value not in (None, ""))
    return f"annotated by {given.author or 'nobody named'}: {text}"


_TEXTS: dict[type, Callable[[Any], str]] = {
    events.Accepted: _accepted,
    events.Started: lambda kind: f"started after {kind.queue_time:.2f} s in the queue",
    events.Resumed: lambda kind: f"started again after event {kind.previous_last_event}: the server had restarted",
    events.ChatRequested: _requested,
    events.ChatAnswered: _answered,
    events.ChatFailed: _chat_failed,
    events.ToolCalled: _tool_called,
    events.ToolReturned: _tool_returned,
    events.Logged: _logged,
    events.SampleAdded: _sample_added,
    events.SegmentClosed: _segment_closed,
    events.CancelAsked: lambda kind: f"cancel asked{f': {kind.reason}' if kind.reason else ''}",
    events.Graded: _graded,
    events.Ended: _ended,
    events.Delivered: _delivered,
    events.Annotated: _annotated,
}


def event_record(event: TrajectoryEvent) -> dict[str, object]:
    """Return the record of an event: its ids, number and time, and the fields of its kind."""
    kind = event.kind
    size = {"response_tokens": sampled(kind)} if isinstance(kind, events.ChatAnswered) else {}
    return {
        "rollout_id": event.rollout_id,
        "attempt": event.attempt,
        "event_number": event.event_number,
        "time": event.time,
        **plain(kind, without=HEAVY.get(type(kind), frozenset())),
        **size,
    }
