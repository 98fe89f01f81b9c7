"""Computes the rows of the views from the events of a rollout, and values of their columns."""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from osmosis_grpc.cli.rollout_facts import RolloutFacts
from osmosis_grpc.protocol.types import Sample, TrajectoryEvent, events
from osmosis_grpc.records.reading.history import Chat, ChatName, History, ToolCall
from osmosis_grpc.records.reading.message_text import mappings, text_of
from osmosis_grpc.records.reading.record_values import plain

Events = list[TrajectoryEvent]


class Reward(NamedTuple):
    """A reward, or a named part of it."""

    sample: str
    chat_number: int
    name: str
    reward: float


class Exactly(History):
    """A history that does not guess the chat of a tool call which the server does not know."""

    def place(self, sample: str, number: int) -> ChatName:
        """Return the same names."""
        return sample, number


def history_of_events(trail: Events, history: History | None = None) -> History:
    """Return the history that events tell."""
    found = history or History()
    for event in trail:
        found.add(event)
    return found


def chats(facts: RolloutFacts, trail: Events) -> Iterable[Chat]:
    """Return the chats of a rollout. An open one gets the time until which it lasted as its end."""
    found = list(history_of_events(trail).chats.values())
    for chat in found:
        chat.ended = facts.end if chat.ended is None else chat.ended
    return found


def tools(facts: RolloutFacts, trail: Events) -> Iterable[ToolCall]:
    """Return the tool calls of a rollout. An open one gets the time until which it lasted as its end."""
    found = history_of_events(trail, Exactly()).tools
    for tool in found:
        tool.ended = facts.end if tool.ended is None else tool.ended
    return found


def samples(facts: RolloutFacts, trail: Events) -> Iterable[tuple[str, Sample]]:
    """Return the samples of a rollout with their names."""
    if facts.outcome is not None:
        return facts.outcome.samples.items()
    return history_of_events(trail).samples(None).items()


def rewards(facts: RolloutFacts, trail: Events) -> Iterable[Reward]:
    """Yield the rewards of an ended rollout, and their named parts."""
    outcome = facts.outcome
    if outcome is None:
        return
    given: list[tuple[str, int, float | None, Any]] = [("", 0, outcome.reward, outcome.reward_components)]
    for name, sample in outcome.samples.items():
        given.append((name, 0, sample.reward, sample.reward_components))
        given += [(name, chat.chat_number, chat.reward, chat.reward_components) for chat in sample.chat_rewards]
    for sample_name, number, reward, parts in given:
        named = {"": reward, **parts}
        yield from (Reward(sample_name, number, part, value) for part, value in named.items() if value is not None)


def logs(facts: RolloutFacts, trail: Events) -> Iterable[TrajectoryEvent]:
    """Return the events Logged since the last restart of the agent."""
    resumed = max((at for at, event in enumerate(trail) if isinstance(event.kind, events.Resumed)), default=-1)
    return [event for event in trail[resumed + 1 :] if isinstance(event.kind, events.Logged)]


def event_data(event: TrajectoryEvent) -> str:
    """Return the fields of an event as JSON, without the names of the rollout and without tokens."""
    from osmosis_grpc.cli.events import record

    named = ("rollout_id", "attempt", "event_number", "time")
    return as_json({name: value for name, value in record(event).items() if name not in named})


def as_json(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def chat_state(chat: Chat) -> str:
    """Return answered, failed or open."""
    if chat.answered is not None:
        return "answered"
    return "failed" if chat.failures and not chat.failures[-1].will_retry else "open"


def seconds(row: Chat | ToolCall) -> float | None:
    """Return the seconds of a chat or a tool call of chats() and tools()."""
    end = row.answered if isinstance(row, Chat) else row.returned
    if end is not None:
        return end.latency
    return None if row.ended is None else max(0.0, row.ended - row.began)


def of_reply(chat: Chat, read: Callable[[Any], Any]) -> Any:
    """Return a value of the reply of a chat; None without a reply."""
    return None if chat.answered is None else read(chat.answered.response)


def prompt_tokens(response: Any) -> int | None:
    """Return the number of tokens of the prompt of a reply; None if it is not known."""
    if response.prompt_ids is not None:
        return len(response.prompt_ids) + int(response.prompt_prefix)
    count = (response.usage or {}).get("prompt_tokens")
    return count if isinstance(count, int) else None


def tool_state(tool: ToolCall) -> str:
    """Return returned, failed or open."""
    if tool.returned is None:
        return "open"
    return "failed" if tool.returned.error else "returned"


def tool_result(tool: ToolCall) -> str | None:
    """Return the text of the result of a tool call."""
    message = tool.returned.message if tool.returned is not None else None
    return None if message is None else text_of(message.get("content"))


def of_failure(read: Callable[[Any], Any]) -> Callable[[RolloutFacts], Any]:
    """Return a function that reads a value of a rollout's failure."""

    def value(facts: RolloutFacts) -> Any:
        failure = facts.outcome.failure if facts.outcome is not None else None
        return None if failure is None else read(failure)

    return value


def of_metrics(read: Callable[[Any], Any]) -> Callable[[RolloutFacts], Any]:
    """Return a function that reads a value of an ended rollout's metrics."""
    return lambda facts: None if facts.outcome is None else read(facts.outcome.metrics)


def tool_calls(response: Any) -> int:
    """Return the number of tool calls in a reply."""
    return len(mappings(response.message.get("tool_calls")))


def reply_text(response: Any) -> str | None:
    """Return the text of a reply; None if it has none."""
    return text_of(response.message["content"]) if response.message.get("content") else None


def reasoning(response: Any) -> str | None:
    """Return the reasoning of a reply; None if it has none."""
    found = response.message.get("reasoning_content") or response.message.get("reasoning")
    return found if isinstance(found, str) else None


def flag(value: bool | None) -> int | None:
    """Return 1, 0 or None."""
    return None if value is None else int(value)
