"""Declares the views that `query` offers of a journal: their columns, types, meanings and values.

The views are a public surface. If a column or a view is removed, renamed or gets another meaning, VIEWS_VERSION grows.
docs/query.md has the same table; scripts/views.py writes it there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from osmosis_grpc.cli import view_values as values
from osmosis_grpc.cli.rollout_facts import RolloutFacts
from osmosis_grpc.protocol.types import EventKind, events
from osmosis_grpc.records.reading.event_text import name_of, one_line
from osmosis_grpc.records.reading.history import sampled
from osmosis_grpc.records.reading.message_text import mapping

VIEWS_VERSION = 1
"""The version of the views. It grows with a change that can break a query; a new column or view leaves it the same."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view."""

    name: str
    type: str
    """TEXT, INTEGER, REAL, or JSON, which is a TEXT."""
    meaning: str
    value: Callable[[Any], Any] | None = None
    """Returns the value from one of the View's rows. None if `sql` has the value."""
    sql: str = ""
    """An expression over the journal's table of rollouts, named r. {value} in it is what `value` returns."""


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    rows: Callable[[RolloutFacts, values.Events], Iterable[Any]] | None = None
    """Returns the rows of one rollout from its events of the kinds `kinds`. None if each rollout is one row."""
    kinds: tuple[type[EventKind], ...] = ()
    """The kinds of events that `rows` needs; empty for all."""


def _of_the_end(name: str, live: Callable[[Any], Any]) -> tuple[Callable[[RolloutFacts], Any], str]:
    """Return the value of a column that has its own column in the journal after the end."""
    sql = f"CASE WHEN r.end_time IS NULL THEN {{value}} ELSE r.{name} END"
    return (lambda facts: None if facts.info is None else live(facts.info)), sql


_ID = (
    Column("rollout_id", "TEXT", "The rollout.", sql="r.rollout_id"),
    Column("attempt", "INTEGER", "The attempt, from 1.", sql="r.attempt"),
)
_SAMPLE = Column("sample", "TEXT", "The sample. `main` is the first one.", lambda row: row.sample)
_ONE_CHAT = Column("chat_number", "INTEGER", "The number of the chat within its sample, from 1: the turn.")
_STATE_VALUE, _STATE = _of_the_end("state", lambda info: info.state.value)

_ROLLOUTS = (
    *_ID,
    Column("agent_loop", "TEXT", "The name of the agent loop.", sql="r.agent_loop"),
    Column(
        "state",
        "TEXT",
        "QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED or DEADLINE_EXCEEDED. Upper and lower case are equal.",
        _STATE_VALUE,
        f"({_STATE}) COLLATE NOCASE",
    ),
    Column("group_id", "TEXT", "The group, if the request names one.", sql="r.group_id"),
    Column(
        "group_index",
        "INTEGER",
        "The rollout's number in its group, from 0.",
        lambda facts: facts.request.group.index if facts.request and facts.request.group else None,
    ),
    Column("forked_from", "TEXT", "The rollout that it forks from, if it is a fork.", sql="r.forked_from"),
    Column(
        "forked_sample",
        "TEXT",
        "The sample of the last chat that it has from there.",
        lambda facts: facts.request.fork.sample if facts.request and facts.request.fork else None,
    ),
    Column(
        "forked_chat",
        "INTEGER",
        "The number of that chat.",
        lambda facts: facts.request.fork.chat_number if facts.request and facts.request.fork else None,
    ),
    Column("reward", "REAL", "The reward, or the mean of its samples' rewards. NULL without a reward.", sql="r.reward"),
    Column(
        "failure_reason",
        "TEXT",
        "Why it failed; errors.md explains each reason. Upper and lower case are equal.",
        sql="r.failure_reason COLLATE NOCASE",
    ),
    Column("failure_summary", "TEXT", "The first line of the failure's message.", sql="r.failure_summary"),
    Column("failure_message", "TEXT", "The whole message.", values.of_failure(lambda failure: failure.message)),
    Column(
        "failure_place",
        "TEXT",
        "The place in the agent's code: FILE:LINE in FUNCTION.",
        values.of_failure(lambda failure: failure.where or None),
    ),
    Column(
        "boundary",
        "TEXT",
        "The part at fault: agent, tool, trainer, grader or server.",
        values.of_failure(lambda failure: failure.boundary),
    ),
    Column(
        "retryable",
        "INTEGER",
        "1 if another attempt may succeed.",
        values.of_failure(lambda failure: int(failure.retryable)),
    ),
    Column(
        "finish_reason",
        "TEXT",
        "How the agent ended, such as stop.",
        *_of_the_end("finish_reason", lambda info: info.finish_reason or None),
    ),
    Column("chats", "INTEGER", "Answered chats.", *_of_the_end("chats", lambda info: info.chats)),
    Column(
        "tool_calls", "INTEGER", "Tool calls, once it ended.", values.of_metrics(lambda metrics: metrics.num_tool_calls)
    ),
    Column(
        "prompt_tokens",
        "INTEGER",
        "Tokens of the prompts of its chats.",
        *_of_the_end("prompt_tokens", lambda info: info.prompt_tokens),
    ),
    Column(
        "response_tokens",
        "INTEGER",
        "Tokens of replies.",
        *_of_the_end("response_tokens", lambda info: info.response_tokens),
    ),
    Column("accept_time", "REAL", "When it was accepted.", sql="r.accept_time"),
    Column("start_time", "REAL", "When its agent started.", *_of_the_end("start_time", lambda info: info.start_time)),
    Column("end_time", "REAL", "When it ended. NULL before that.", sql="r.end_time"),
    Column("seconds", "REAL", "From the acceptance to the end.", sql="r.end_time - r.accept_time"),
    Column("queue_seconds", "REAL", "In the queue.", values.of_metrics(lambda metrics: metrics.queue_time)),
    Column("model_seconds", "REAL", "With a chat open.", values.of_metrics(lambda metrics: metrics.model_time)),
    Column("tool_seconds", "REAL", "With a tool running, and no chat open.", values.of_metrics(lambda m: m.tool_time)),
    Column("agent_seconds", "REAL", "The rest: the agent's own time.", values.of_metrics(lambda m: m.overhead_time)),
    Column(
        "activity",
        "TEXT",
        "What it does now, such as `tool search`. NULL after the end.",
        lambda facts: None if facts.info is None else facts.info.activity.description,
        "CASE WHEN r.end_time IS NULL THEN {value} END",
    ),
    Column(
        "progress_time",
        "REAL",
        "The time of its newest event. NULL after the end.",
        lambda facts: None if facts.info is None else facts.info.progress_time,
        "CASE WHEN r.end_time IS NULL THEN {value} END",
    ),
    Column(
        "undelivered",
        "INTEGER",
        "1 if it ended, and its outcome has not reached the trainer.",
        sql="r.end_time IS NOT NULL AND NOT r.settled",
    ),
    Column(
        "label",
        "TEXT",
        "The reference answer of the request.",
        lambda facts: None if facts.request is None else facts.request.label,
    ),
    Column(
        "metadata",
        "JSON",
        "The metadata of the request: an object.",
        lambda facts: None if facts.request is None else values.as_json(facts.request.metadata),
    ),
    Column(
        "messages",
        "JSON",
        "The messages of the request: a list.",
        lambda facts: None if facts.request is None else values.as_json(facts.request.messages),
    ),
    Column(
        "evaluation",
        "INTEGER",
        "1 if it is an evaluation, which is never trained on.",
        lambda facts: None if facts.request is None else int(facts.request.evaluation),
    ),
    Column(
        "agent_version",
        "TEXT",
        "The version of the agent's code, once it ended.",
        lambda facts: (facts.outcome.agent_version or None) if facts.outcome is not None else None,
    ),
)

_CHATS = (
    *_ID,
    replace(_SAMPLE, value=lambda chat: chat.asked.sample),
    replace(_ONE_CHAT, value=lambda chat: chat.asked.chat_number),
    Column(
        "parent_chat", "INTEGER", "The earlier chat that it continues; 0 for none.", lambda chat: chat.asked.parent_chat
    ),
    Column("purpose", "TEXT", "policy, or judge for a grader.", lambda chat: chat.asked.purpose.value),
    Column("policy", "TEXT", "The name of the policy; NULL for the only one.", lambda chat: chat.asked.policy or None),
    Column("state", "TEXT", "answered, failed, or open: it has no end.", values.chat_state),
    Column(
        "forked",
        "INTEGER",
        "1 if the reply is a recorded one of the rollout that this one forks from.",
        lambda chat: int(chat.answered is not None and chat.answered.forked),
    ),
    Column("request_time", "REAL", "When the agent asked.", lambda chat: chat.began),
    Column(
        "seconds",
        "REAL",
        "Until the reply or the last failure. An open chat lasts until the rollout's end, or until now.",
        values.seconds,
    ),
    Column(
        "finish_reason",
        "TEXT",
        "Why the reply ends, such as stop or length.",
        lambda c: values.of_reply(c, lambda reply: reply.finish_reason),
    ),
    Column(
        "prompt_tokens",
        "INTEGER",
        "Tokens of the prompt, if known.",
        lambda chat: values.of_reply(chat, values.prompt_tokens),
    ),
    Column(
        "response_tokens",
        "INTEGER",
        "Tokens of the reply, if known.",
        lambda chat: sampled(chat.answered) if chat.answered else None,
    ),
    Column("tool_calls", "INTEGER", "Tool calls in the reply.", lambda chat: values.of_reply(chat, values.tool_calls)),
    Column("text", "TEXT", "The text of the reply.", lambda chat: values.of_reply(chat, values.reply_text)),
    Column("reasoning", "TEXT", "The reasoning of the reply.", lambda chat: values.of_reply(chat, values.reasoning)),
    Column(
        "reply",
        "JSON",
        "The reply: an assistant message.",
        lambda chat: values.of_reply(chat, lambda r: values.as_json(r.message)),
    ),
    Column(
        "new_messages",
        "JSON",
        "The messages after the reply of the chat that it continues: a list.",
        lambda chat: values.as_json(chat.asked.messages),
    ),
    Column("params", "JSON", "The sampling parameters: an object.", lambda chat: values.as_json(chat.asked.params)),
    Column(
        "tries_failed", "INTEGER", "How often it failed and was asked again, or gave up.", lambda c: len(c.failures)
    ),
    Column(
        "error",
        "TEXT",
        "The message of its newest failure.",
        lambda chat: chat.failures[-1].message if chat.failures else None,
    ),
)


_TOOLS = (
    *_ID,
    replace(
        _SAMPLE,
        meaning="The sample whose reply asks for the call; NULL if unknown.",
        value=lambda tool: tool.sample or None,
    ),
    replace(_ONE_CHAT, meaning="The chat of that reply; NULL if unknown.", value=lambda tool: tool.chat_number or None),
    Column("tool_call_id", "TEXT", "The id of the call.", lambda tool: tool.id),
    Column("name", "TEXT", "The name of the tool.", lambda tool: tool.name),
    Column(
        "arguments",
        "JSON",
        "The arguments, as the model wrote them.",
        lambda tool: mapping(tool.call.get("function")).get("arguments"),
    ),
    Column("state", "TEXT", "returned, failed, or open: it did not return.", values.tool_state),
    Column("call_time", "REAL", "When it was called.", lambda tool: tool.began),
    Column(
        "seconds",
        "REAL",
        "Until it returned. An open call lasts until the rollout's end, or until now.",
        values.seconds,
    ),
    Column("result", "TEXT", "The text of the result.", values.tool_result),
    Column("error", "TEXT", "What it raised.", lambda tool: (tool.returned.error or None) if tool.returned else None),
)

_SAMPLES = (
    *_ID,
    replace(_SAMPLE, value=lambda row: row[0]),
    Column("policy", "TEXT", "The name of the policy; NULL for the only one.", lambda row: row[1].policy or None),
    Column("reward", "REAL", "Its own reward.", lambda row: row[1].reward),
    Column("trainable", "INTEGER", "1 if its tokens are exact.", lambda row: int(row[1].trainable)),
    Column(
        "not_trainable_reason",
        "TEXT",
        "Why they are not, once it ended.",
        lambda row: row[1].not_trainable_reason or None,
    ),
    Column("train", "INTEGER", "0 if the agent excludes it from training.", lambda row: int(row[1].train is not False)),
    Column(
        "cut",
        "TEXT",
        "The limit that cut it: length, context, abort, max_turns, max_tokens or time.",
        lambda row: row[1].cut or None,
    ),
    Column(
        "dropped",
        "INTEGER",
        "How many of its replies the agent dropped. Known when the rollout has ended.",
        lambda row: len(row[1].dropped_chats),
    ),
    Column(
        "parent_sample",
        "TEXT",
        "The sample that it branched from.",
        lambda row: row[1].parent.sample if row[1].parent else None,
    ),
    Column(
        "parent_chat",
        "INTEGER",
        "The chat that it branched from.",
        lambda row: row[1].parent.chat_number if row[1].parent else None,
    ),
    Column("segments", "INTEGER", "Its segments, once it ended.", lambda row: len(row[1].segments)),
    Column(
        "tokens",
        "INTEGER",
        "The tokens of its segments.",
        lambda row: sum(sum(segment.mask_runs) for segment in row[1].segments),
    ),
    Column(
        "sampled_tokens",
        "INTEGER",
        "Those that the policy sampled.",
        lambda row: sum(segment.sampled for segment in row[1].segments),
    ),
)

_REWARDS = (
    *_ID,
    replace(_SAMPLE, meaning="The sample; NULL for the whole rollout.", value=lambda row: row.sample or None),
    replace(_ONE_CHAT, meaning="The chat; NULL for the whole sample.", value=lambda row: row.chat_number or None),
    Column("name", "TEXT", "The part of the reward; NULL for the reward itself.", lambda row: row.name or None),
    Column("reward", "REAL", "The value.", lambda row: row.reward),
)

_ANNOTATIONS = (
    *_ID,
    Column("annotation_id", "TEXT", "Its id.", lambda event: event.kind.annotation.id),
    Column("author", "TEXT", "A person, or a program that trains.", lambda event: event.kind.annotation.author or None),
    Column("time", "REAL", "When the server stored it.", lambda event: event.time),
    Column("reward", "REAL", "A corrected reward.", lambda event: event.kind.annotation.reward),
    Column(
        "sample", "TEXT", "The sample of `reward`; NULL for all.", lambda event: event.kind.annotation.sample or None
    ),
    Column("advantage", "REAL", "The advantage of the rollout.", lambda event: event.kind.annotation.advantage),
    Column(
        "trained",
        "INTEGER",
        "1 if the trainer trained on it.",
        lambda event: values.flag(event.kind.annotation.trained),
    ),
    Column(
        "dropped_reason",
        "TEXT",
        "Why the trainer dropped it.",
        lambda event: event.kind.annotation.dropped_reason or None,
    ),
    Column(
        "weight_step",
        "TEXT",
        "The step of the weights that consumed it.",
        lambda event: event.kind.annotation.weight_step or None,
    ),
    Column("labels", "JSON", "Its labels: a list.", lambda event: values.as_json(event.kind.annotation.labels)),
    Column("note", "TEXT", "A remark for people.", lambda event: event.kind.annotation.note or None),
)


_LOGS = (
    *_ID,
    replace(_SAMPLE, meaning="The sample that the agent named.", value=lambda event: event.kind.sample or None),
    replace(_ONE_CHAT, meaning="The newest chat then.", value=lambda event: event.kind.chat_number or None),
    Column("time", "REAL", "When it was logged.", lambda event: event.time),
    Column("name", "TEXT", "The name of the log event.", lambda event: event.kind.name),
    Column("data", "JSON", "Its fields: an object.", lambda event: values.as_json(event.kind.data)),
)

_EVENTS = (
    *_ID,
    Column("event_number", "INTEGER", "Its number in the attempt, from 1.", lambda event: event.event_number),
    Column("time", "REAL", "When it happened.", lambda event: event.time),
    Column("kind", "TEXT", "Its kind as in protocol.md, such as chat_answered.", lambda event: name_of(event.kind)),
    Column("text", "TEXT", "One line about it, as `events` prints it.", lambda event: one_line(event.kind)),
    Column(
        "data", "JSON", "Its fields without tokens, as the records of `events --json`: an object.", values.event_data
    ),
)

VIEWS = {
    view.name: view
    for view in (
        View("rollouts", "One row for each attempt of a rollout.", _ROLLOUTS),
        View(
            "chats",
            "One row for each chat: a request for a reply of the model.",
            _CHATS,
            values.chats,
            (events.ChatRequested, events.ChatAnswered, events.ChatFailed, events.Resumed),
        ),
        View(
            "tools",
            "One row for each tool call.",
            _TOOLS,
            values.tools,
            (events.ToolCalled, events.ToolReturned, events.Resumed),
        ),
        View(
            "samples",
            "One row for each sample: a conversation of a rollout.",
            _SAMPLES,
            values.samples,
            (events.SampleAdded, events.ChatRequested, events.Resumed),
        ),
        View(
            "rewards",
            "One row for each reward of an ended rollout, and for each named part of one.",
            _REWARDS,
            values.rewards,
            (events.Resumed,),
        ),
        View(
            "annotations", "One row for each annotation.", _ANNOTATIONS, lambda facts, trail: trail, (events.Annotated,)
        ),
        View(
            "logs", "One row for each `ctx.log_event` of an agent.", _LOGS, values.logs, (events.Logged, events.Resumed)
        ),
        View("events", "One row for each event, in the order of their numbers.", _EVENTS, lambda facts, trail: trail),
    )
}
"""The views by name, in the order of the documentation."""
