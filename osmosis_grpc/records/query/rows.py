"""Makes the rows of the views from rollouts, and computes the values of their columns.

A table such as CHATS has one function for each column, so that a query computes only the columns that it needs.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from osmosis_grpc.protocol.types import Sample, TrajectoryEvent
from osmosis_grpc.protocol.types import events as kinds
from osmosis_grpc.records.query.rollouts import Rollout
from osmosis_grpc.records.reading.event_text import event_record, name_of, one_line
from osmosis_grpc.records.reading.history import Chat, ChatName, History, ToolCall, sampled
from osmosis_grpc.records.reading.message_text import mapping, mappings, text_of
from osmosis_grpc.records.reading.record_values import plain

Values = Mapping[str, Callable[[Any], Any]]


class Reward(NamedTuple):
    """A reward, or a named part of it."""

    sample: str
    chat_number: int
    name: str
    reward: float


class Token(NamedTuple):
    """A sampled token of a reply."""

    chat: kinds.ChatAnswered
    position: int
    token_id: int
    logprob: float | None


class _Exactly(History):
    """A history that does not guess which chat an unassigned tool call belongs to."""

    def place(self, sample: str, number: int) -> ChatName:
        return sample, number


def _history(rollout: Rollout, *wanted: type, history: History | None = None) -> History:
    history = history or History()
    for event in rollout.events(*wanted, kinds.Resumed):
        history.add(event)
    return history


def itself(rollout: Rollout) -> Iterable[Rollout]:
    """Return the single row of a rollout in the view `rollouts`."""
    return (rollout,)


def chats(rollout: Rollout) -> Iterator[Chat]:
    """Yield the chats. An open chat gets the rollout's end as its own."""
    for chat in _history(rollout, kinds.ChatRequested, kinds.ChatAnswered, kinds.ChatFailed).chats.values():
        chat.ended = rollout.end if chat.ended is None else chat.ended
        yield chat


def tools(rollout: Rollout) -> Iterator[ToolCall]:
    """Yield the tool calls. An open call gets the rollout's end as its own."""
    for tool in _history(rollout, kinds.ToolCalled, kinds.ToolReturned, history=_Exactly()).tools:
        tool.ended = rollout.end if tool.ended is None else tool.ended
        yield tool


def samples(rollout: Rollout) -> Iterable[tuple[str, Sample]]:
    """Return the samples with their names."""
    if rollout.outcome is not None:
        return rollout.outcome.samples.items()
    return _history(rollout, kinds.SampleAdded, kinds.ChatRequested).samples(None).items()


def rewards(rollout: Rollout) -> Iterator[Reward]:
    """Yield the rewards of an ended rollout, and their named parts."""
    outcome = rollout.outcome
    if outcome is None:
        return
    places: list[tuple[str, int, Any]] = [("", 0, outcome)]
    for name, sample in outcome.samples.items():
        places += [(name, 0, sample), *((name, chat.chat_number, chat) for chat in sample.chat_rewards)]
    for name, number, rewarded in places:
        parts = {"": rewarded.reward, **rewarded.reward_components}
        yield from (Reward(name, number, part, value) for part, value in parts.items() if value is not None)


def tokens(rollout: Rollout) -> Iterator[Token]:
    """Yield the sampled tokens of the replies."""
    for chat in chats(rollout):
        packed = chat.answered.response.tokens if chat.answered is not None else None
        if chat.answered is None or packed is None:
            continue
        logprobs = packed.logprobs
        for position, token_id in enumerate(packed.ids):
            logprob = math.nan if logprobs is None else float(logprobs[position])
            yield Token(chat.answered, position, int(token_id), None if math.isnan(logprob) else logprob)


def annotations(rollout: Rollout) -> Iterable[TrajectoryEvent]:
    """Return the annotation events."""
    return rollout.events(kinds.Annotated)


def logs(rollout: Rollout) -> Iterable[TrajectoryEvent]:
    """Return the Logged events since the last restart of the agent."""
    trail = rollout.events(kinds.Logged, kinds.Resumed)
    resumed = max((at for at, event in enumerate(trail) if isinstance(event.kind, kinds.Resumed)), default=-1)
    return trail[resumed + 1 :]


def events(rollout: Rollout) -> Iterable[TrajectoryEvent]:
    """Return all events."""
    return rollout.events()


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)


def _part(read: Callable[[Any], Any], use: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that applies `use` to the result of `read`, unless that is None."""

    def value(row: Any) -> Any:
        part = read(row)
        return None if part is None else use(part)

    return value


def _request(use: Callable[[Any], Any]) -> Callable[[Rollout], Any]:
    return _part(lambda rollout: rollout.request, use)


def _fork(use: Callable[[Any], Any]) -> Callable[[Rollout], Any]:
    return _part(lambda rollout: rollout.request and rollout.request.fork, use)


def _failure(use: Callable[[Any], Any]) -> Callable[[Rollout], Any]:
    return _part(lambda rollout: rollout.outcome and rollout.outcome.failure, use)


def _metrics(use: Callable[[Any], Any]) -> Callable[[Rollout], Any]:
    return _part(lambda rollout: rollout.outcome and rollout.outcome.metrics, use)


def _reply(use: Callable[[Any], Any]) -> Callable[[Chat], Any]:
    return _part(lambda chat: chat.answered and chat.answered.response, use)


def _note(name: str) -> Callable[[TrajectoryEvent], Any]:
    """Return a function that reads a field of an annotation. An empty text becomes NULL."""

    def value(event: Any) -> Any:
        field = getattr(event.kind.annotation, name)
        return None if field == "" else field

    return value


def _prompt_tokens(response: Any) -> int | None:
    if response.prompt_ids is not None:
        return len(response.prompt_ids) + int(response.prompt_prefix)
    count = (response.usage or {}).get("prompt_tokens")
    return count if isinstance(count, int) else None


def _reasoning(response: Any) -> str | None:
    text = response.message.get("reasoning_content") or response.message.get("reasoning")
    return text if isinstance(text, str) else None


def _chat_state(chat: Chat) -> str:
    if chat.answered is not None:
        return "answered"
    return "failed" if chat.failures and not chat.failures[-1].will_retry else "open"


def _tool_state(tool: ToolCall) -> str:
    if tool.returned is None:
        return "open"
    return "failed" if tool.returned.error else "returned"


def _seconds(row: Chat | ToolCall) -> float | None:
    end = row.answered if isinstance(row, Chat) else row.returned
    if end is not None:
        return end.latency
    return None if row.ended is None else max(0.0, row.ended - row.began)


def _event_data(event: TrajectoryEvent) -> str:
    named = ("rollout_id", "attempt", "event_number", "time")
    return _json({name: value for name, value in event_record(event).items() if name not in named})


ROLLOUTS: Values = {
    "agent_loop": lambda rollout: rollout.row.agent_loop,
    "state": lambda rollout: rollout.info.state.value,
    "group_id": lambda rollout: rollout.row.group_id,
    "group_index": _part(lambda rollout: rollout.request and rollout.request.group, lambda group: group.index),
    "forked_from": lambda rollout: rollout.row.forked_from,
    "forked_sample": _fork(lambda fork: fork.sample),
    "forked_chat": _fork(lambda fork: fork.chat_number),
    "reward": lambda rollout: rollout.row.reward,
    "failure_reason": lambda rollout: rollout.row.failure_reason,
    "failure_summary": lambda rollout: rollout.row.failure_summary,
    "failure_message": _failure(lambda failure: failure.message),
    "failure_place": _failure(lambda failure: failure.where or None),
    "boundary": _failure(lambda failure: failure.boundary),
    "retryable": _failure(lambda failure: failure.retryable),
    "finish_reason": lambda rollout: rollout.info.finish_reason or None,
    "chats": lambda rollout: rollout.info.chats,
    "tool_calls": _metrics(lambda metrics: metrics.num_tool_calls),
    "prompt_tokens": lambda rollout: rollout.info.prompt_tokens,
    "response_tokens": lambda rollout: rollout.info.response_tokens,
    "accept_time": lambda rollout: rollout.row.accept_time,
    "start_time": lambda rollout: rollout.info.start_time,
    "end_time": lambda rollout: rollout.row.end_time,
    "seconds": _part(lambda rollout: rollout.row, lambda row: row.end_time and row.end_time - row.accept_time),
    "queue_seconds": _metrics(lambda metrics: metrics.queue_time),
    "model_seconds": _metrics(lambda metrics: metrics.model_time),
    "tool_seconds": _metrics(lambda metrics: metrics.tool_time),
    "agent_seconds": _metrics(lambda metrics: metrics.overhead_time),
    "activity": lambda rollout: None if rollout.row.end_time else rollout.info.activity.description,
    "progress_time": lambda rollout: None if rollout.row.end_time else rollout.info.progress_time,
    "undelivered": lambda rollout: rollout.row.end_time is not None and not rollout.row.settled,
    "label": _request(lambda request: request.label),
    "metadata": _request(lambda request: _json(request.metadata)),
    "messages": _request(lambda request: _json(request.messages)),
    "evaluation": _request(lambda request: request.evaluation),
    "agent_version": _part(lambda rollout: rollout.outcome, lambda outcome: outcome.agent_version or None),
}
CHATS: Values = {
    "sample": lambda chat: chat.asked.sample,
    "chat_number": lambda chat: chat.asked.chat_number,
    "parent_chat": lambda chat: chat.asked.parent_chat,
    "purpose": lambda chat: chat.asked.purpose.value,
    "policy": lambda chat: chat.asked.policy or None,
    "state": _chat_state,
    "forked": lambda chat: chat.answered is not None and chat.answered.forked,
    "request_time": lambda chat: chat.began,
    "seconds": _seconds,
    "finish_reason": _reply(lambda reply: reply.finish_reason),
    "prompt_tokens": _reply(_prompt_tokens),
    "response_tokens": _part(lambda chat: chat.answered, sampled),
    "tool_calls": _reply(lambda reply: len(mappings(reply.message.get("tool_calls")))),
    "text": _reply(lambda reply: text_of(reply.message["content"]) if reply.message.get("content") else None),
    "reasoning": _reply(_reasoning),
    "reply": _reply(lambda reply: _json(reply.message)),
    "new_messages": lambda chat: _json(chat.asked.messages),
    "params": lambda chat: _json(chat.asked.params),
    "tries_failed": lambda chat: len(chat.failures),
    "error": lambda chat: chat.failures[-1].message if chat.failures else None,
}
TOOLS: Values = {
    "sample": lambda tool: tool.sample or None,
    "chat_number": lambda tool: tool.chat_number or None,
    "tool_call_id": lambda tool: tool.id,
    "name": lambda tool: tool.name,
    "arguments": lambda tool: mapping(tool.call.get("function")).get("arguments"),
    "state": _tool_state,
    "call_time": lambda tool: tool.began,
    "seconds": _seconds,
    "result": _part(lambda tool: tool.returned and tool.returned.message, lambda message: text_of(message["content"])),
    "error": lambda tool: (tool.returned.error or None) if tool.returned else None,
}
SAMPLES: Values = {
    "sample": lambda row: row[0],
    "policy": lambda row: row[1].policy or None,
    "reward": lambda row: row[1].reward,
    "trainable": lambda row: row[1].trainable,
    "not_trainable_reason": lambda row: row[1].not_trainable_reason or None,
    "train": lambda row: row[1].train is not False,
    "cut": lambda row: row[1].cut or None,
    "dropped": lambda row: len(row[1].dropped_chats),
    "parent_sample": lambda row: row[1].parent.sample if row[1].parent else None,
    "parent_chat": lambda row: row[1].parent.chat_number if row[1].parent else None,
    "segments": lambda row: len(row[1].segments),
    "tokens": lambda row: sum(sum(segment.mask_runs) for segment in row[1].segments),
    "sampled_tokens": lambda row: sum(segment.sampled for segment in row[1].segments),
}
REWARDS: Values = {
    "sample": lambda reward: reward.sample or None,
    "chat_number": lambda reward: reward.chat_number or None,
    "name": lambda reward: reward.name or None,
    "reward": lambda reward: reward.reward,
}
TOKENS: Values = {
    "sample": lambda token: token.chat.sample,
    "chat_number": lambda token: token.chat.chat_number,
    "position": lambda token: token.position,
    "token_id": lambda token: token.token_id,
    "logprob": lambda token: token.logprob,
}
ANNOTATIONS: Values = {
    "annotation_id": _note("id"),
    "author": _note("author"),
    "time": lambda event: event.time,
    "reward": _note("reward"),
    "sample": _note("sample"),
    "advantage": _note("advantage"),
    "trained": _note("trained"),
    "dropped_reason": _note("dropped_reason"),
    "weight_step": _note("weight_step"),
    "labels": lambda event: _json(event.kind.annotation.labels),
    "note": _note("note"),
}
LOGS: Values = {
    "sample": lambda event: event.kind.sample or None,
    "chat_number": lambda event: event.kind.chat_number or None,
    "time": lambda event: event.time,
    "name": lambda event: event.kind.name,
    "data": lambda event: _json(event.kind.data),
}
EVENTS: Values = {
    "event_number": lambda event: event.event_number,
    "time": lambda event: event.time,
    "kind": lambda event: name_of(event.kind),
    "text": lambda event: one_line(event.kind),
    "data": _event_data,
}
