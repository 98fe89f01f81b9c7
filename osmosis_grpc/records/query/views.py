"""Declares the views of a journal that `query` offers: their columns, types and meanings.

Users depend on the views: increase VIEWS_VERSION if you remove or rename a column or a view, or change its meaning.
scripts/views.py copies the tables to docs/query.md. The values are computed in rows.py.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from osmosis_grpc.records.query import rows
from osmosis_grpc.records.query.rollouts import Rollout

VIEWS_VERSION = 2
"""The version of the views. It increases with changes that can break a query, but not with new columns or views."""


class Column(NamedTuple):
    """One column of a view."""

    name: str
    type: str
    """A type of DuckDB. JSON is a VARCHAR with a JSON text."""
    meaning: str
    nocase: bool = False
    """Whether comparisons ignore the case."""


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    rows: Callable[[Rollout], Iterable[Any]]
    """Returns the rows of one rollout."""
    values: Mapping[str, Callable[[Any], Any]]
    """For each column except the rollout's ids, a function that reads it from such a row."""


_ID = (Column("rollout_id", "VARCHAR", "The rollout."), Column("attempt", "BIGINT", "The attempt, from 1."))
_ROLLOUTS = (
    *_ID,
    Column("agent_loop", "VARCHAR", "The name of the agent loop."),
    Column("state", "VARCHAR", "A state such as RUNNING or FAILED; case is ignored.", nocase=True),
    Column("group_id", "VARCHAR", "The group, if the request names one."),
    Column("group_index", "BIGINT", "The rollout's number in its group, from 0."),
    Column("forked_from", "VARCHAR", "The rollout that it forks from, if it is a fork."),
    Column("forked_sample", "VARCHAR", "The sample of the last chat that it takes from there."),
    Column("forked_chat", "BIGINT", "The number of that chat."),
    Column("reward", "DOUBLE", "The reward, or the mean of its samples' rewards. NULL without a reward."),
    Column("failure_reason", "VARCHAR", "Why it failed: a reason of errors.md; case is ignored.", nocase=True),
    Column("failure_summary", "VARCHAR", "The first line of the failure's message."),
    Column("failure_message", "VARCHAR", "The whole message."),
    Column("failure_place", "VARCHAR", "The place in the agent's code: FILE:LINE in FUNCTION."),
    Column("boundary", "VARCHAR", "The part at fault: agent, tool, trainer, grader or server."),
    Column("retryable", "BOOLEAN", "Whether another attempt may succeed."),
    Column("finish_reason", "VARCHAR", "How the agent ended, such as stop."),
    Column("chats", "BIGINT", "Answered chats."),
    Column("tool_calls", "BIGINT", "Tool calls, once it ended."),
    Column("prompt_tokens", "BIGINT", "Tokens of the prompts of its chats."),
    Column("response_tokens", "BIGINT", "Tokens of replies."),
    Column("accept_time", "DOUBLE", "When it was accepted."),
    Column("start_time", "DOUBLE", "When its agent started."),
    Column("end_time", "DOUBLE", "When it ended. NULL before that."),
    Column("seconds", "DOUBLE", "From the acceptance to the end."),
    Column("queue_seconds", "DOUBLE", "In the queue."),
    Column("model_seconds", "DOUBLE", "With a chat open."),
    Column("tool_seconds", "DOUBLE", "With a tool running, and no chat open."),
    Column("agent_seconds", "DOUBLE", "The rest: the agent's own time."),
    Column("activity", "VARCHAR", "What it does now, such as `tool search`. NULL after the end."),
    Column("progress_time", "DOUBLE", "The time of its newest event. NULL after the end."),
    Column("undelivered", "BOOLEAN", "Whether it has ended but its outcome has not reached the trainer."),
    Column("label", "VARCHAR", "The reference answer of the request."),
    Column("metadata", "JSON", "The metadata of the request: an object."),
    Column("messages", "JSON", "The messages of the request: a list."),
    Column("evaluation", "BOOLEAN", "Whether it is an evaluation, which is never trained on."),
    Column("agent_version", "VARCHAR", "The version of the agent's code, once it ended."),
)
_CHATS = (
    *_ID,
    Column("sample", "VARCHAR", "The sample. `main` is the first one."),
    Column("chat_number", "BIGINT", "The number of the chat within its sample, from 1: the turn."),
    Column("parent_chat", "BIGINT", "The earlier chat that it continues; 0 for none."),
    Column("purpose", "VARCHAR", "policy, or judge for a grader."),
    Column("policy", "VARCHAR", "The name of the policy; NULL for the only one."),
    Column("state", "VARCHAR", "answered, failed, or open: it has no end."),
    Column("forked", "BOOLEAN", "Whether the reply was recorded in the rollout that this one forks from."),
    Column("request_time", "DOUBLE", "When the agent asked."),
    Column("seconds", "DOUBLE", "Until the reply or the last failure; open ones until the rollout's end or now."),
    Column("finish_reason", "VARCHAR", "Why the reply ends, such as stop or length."),
    Column("prompt_tokens", "BIGINT", "Tokens of the prompt, if known."),
    Column("response_tokens", "BIGINT", "Tokens of the reply, if known."),
    Column("tool_calls", "BIGINT", "Tool calls in the reply."),
    Column("text", "VARCHAR", "The text of the reply."),
    Column("reasoning", "VARCHAR", "The reasoning of the reply."),
    Column("reply", "JSON", "The reply: an assistant message."),
    Column("new_messages", "JSON", "The messages after the reply of the chat that it continues: a list."),
    Column("params", "JSON", "The sampling parameters: an object."),
    Column("tries_failed", "BIGINT", "How often it failed and was asked again, or gave up."),
    Column("error", "VARCHAR", "The message of its newest failure."),
)
_TOOLS = (
    *_ID,
    Column("sample", "VARCHAR", "The sample whose reply has the call; NULL if unknown."),
    Column("chat_number", "BIGINT", "The chat of that reply; NULL if unknown."),
    Column("tool_call_id", "VARCHAR", "The id of the call."),
    Column("name", "VARCHAR", "The name of the tool."),
    Column("arguments", "JSON", "The arguments, as the model wrote them."),
    Column("state", "VARCHAR", "returned, failed, or open: it did not return."),
    Column("call_time", "DOUBLE", "When it was called."),
    Column("seconds", "DOUBLE", "Until it returned; for an open call, until the rollout's end or now."),
    Column("result", "VARCHAR", "The text of the result."),
    Column("error", "VARCHAR", "What it raised."),
)
_SAMPLES = (
    *_ID,
    Column("sample", "VARCHAR", "The sample. `main` is the first one."),
    Column("policy", "VARCHAR", "The name of the policy; NULL for the only one."),
    Column("reward", "DOUBLE", "Its own reward."),
    Column("trainable", "BOOLEAN", "Whether its tokens are exact."),
    Column("not_trainable_reason", "VARCHAR", "Why its tokens are not exact, once it ended."),
    Column("train", "BOOLEAN", "False if the agent excludes it from training."),
    Column("cut", "VARCHAR", "The limit that cut it: length, context, abort, max_turns, max_tokens or time."),
    Column("dropped", "BIGINT", "How many of its replies the agent dropped. Known when the rollout has ended."),
    Column("parent_sample", "VARCHAR", "The sample that it branched from."),
    Column("parent_chat", "BIGINT", "The chat that it branched from."),
    Column("segments", "BIGINT", "Its segments, once it ended."),
    Column("tokens", "BIGINT", "The tokens of its segments."),
    Column("sampled_tokens", "BIGINT", "The tokens that the policy sampled."),
)
_REWARDS = (
    *_ID,
    Column("sample", "VARCHAR", "The sample; NULL for the whole rollout."),
    Column("chat_number", "BIGINT", "The chat; NULL for the whole sample."),
    Column("name", "VARCHAR", "The part of the reward; NULL for the reward itself."),
    Column("reward", "DOUBLE", "The value."),
)
_ANNOTATIONS = (
    *_ID,
    Column("annotation_id", "VARCHAR", "Its id."),
    Column("author", "VARCHAR", "A person, or a program that trains."),
    Column("time", "DOUBLE", "When the server stored it."),
    Column("reward", "DOUBLE", "A corrected reward, or the score of the eval function in `labels`."),
    Column("sample", "VARCHAR", "The sample of `reward`; NULL for all."),
    Column("advantage", "DOUBLE", "The advantage of the rollout."),
    Column("trained", "BOOLEAN", "Whether the trainer trained on it."),
    Column("dropped_reason", "VARCHAR", "Why the trainer dropped it."),
    Column("weight_step", "VARCHAR", "The step of the weights that consumed it."),
    Column("labels", "JSON", "Its labels: a list."),
    Column("note", "VARCHAR", "A remark for people."),
)
_LOGS = (
    *_ID,
    Column("sample", "VARCHAR", "The sample that the agent named."),
    Column("chat_number", "BIGINT", "The newest chat then."),
    Column("time", "DOUBLE", "When it was logged."),
    Column("name", "VARCHAR", "The name of the log event."),
    Column("data", "JSON", "Its fields: an object."),
)
_EVENTS = (
    *_ID,
    Column("event_number", "BIGINT", "Its number in the attempt, from 1."),
    Column("time", "DOUBLE", "When it happened."),
    Column("kind", "VARCHAR", "Its kind as in protocol.md, such as chat_answered."),
    Column("text", "VARCHAR", "One line about it, as `events` prints it."),
    Column("data", "JSON", "Its fields without tokens, as the records of `events --json`: an object."),
)
_TOKENS = (
    *_ID,
    Column("sample", "VARCHAR", "The sample. `main` is the first one."),
    Column("chat_number", "BIGINT", "The chat whose reply has the token."),
    Column("position", "BIGINT", "The place of the token in the reply, from 0."),
    Column("token_id", "BIGINT", "The id of the token."),
    Column("logprob", "DOUBLE", "Its log probability; NULL if the trainer did not send it."),
)

VIEWS = {
    view.name: view
    for view in (
        View("rollouts", "One row for each attempt of a rollout.", _ROLLOUTS, rows.itself, rows.ROLLOUTS),
        View("chats", "One row for each chat: a request for a reply of the model.", _CHATS, rows.chats, rows.CHATS),
        View("tools", "One row for each tool call.", _TOOLS, rows.tools, rows.TOOLS),
        View("samples", "One row for each sample: a conversation of a rollout.", _SAMPLES, rows.samples, rows.SAMPLES),
        View(
            "rewards",
            "One row for each reward of an ended rollout, and for each named part of one.",
            _REWARDS,
            rows.rewards,
            rows.REWARDS,
        ),
        View("tokens", "One row for each sampled token of a reply.", _TOKENS, rows.tokens, rows.TOKENS),
        View("annotations", "One row for each annotation.", _ANNOTATIONS, rows.annotations, rows.ANNOTATIONS),
        View("logs", "One row for each `ctx.log_event` of an agent.", _LOGS, rows.logs, rows.LOGS),
        View("events", "One row for each event, in the order of their numbers.", _EVENTS, rows.events, rows.EVENTS),
    )
}
"""The views by name, in the order of the documentation."""
