"""Makes the JSON records of a rollout: one for the rollout, and one for each turn."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from osmosis_grpc.protocol.types import RolloutInfo, Sample
from osmosis_grpc.records.reading.history import Chat, History, sampled
from osmosis_grpc.records.reading.list_filter import origin
from osmosis_grpc.records.reading.record_values import plain

HEAVY = frozenset({"segments", "tokens", "prompt_ids", "prompt_extras", "chats"})
"""The fields of samples and replies that records contain only with --tokens."""


def rollout_record(
    info: RolloutInfo, history: History, samples: Mapping[str, Sample], *, as_of: float | None, tokens: bool
) -> dict[str, Any]:
    """Return the record of a rollout. `as_of` is the result of Source.as_of()."""
    outcome, request = info.outcome, history.request
    without = frozenset() if tokens else HEAVY
    ended = info.end_time is not None
    now = info.end_time if info.end_time is not None else as_of if as_of is not None else time.time()
    return {
        "rollout_id": info.rollout_id,
        "attempt": info.attempt,
        "agent_loop": info.agent_loop,
        "agent_version": history.agent_version,
        "state": info.state.value,
        "activity": None if ended else plain(info.activity),
        "group": plain(info.group),
        "forked_from": origin(info.fork),
        "accept_time": info.accept_time,
        "start_time": info.start_time,
        "end_time": info.end_time,
        "undelivered": info.undelivered,
        "label": None if request is None else request.label,
        "metadata": None if request is None else plain(request.metadata),
        "evaluation": request is not None and request.evaluation,
        "status": None if outcome is None else outcome.status.value,
        "finish_reason": None if outcome is None else outcome.finish_reason,
        "cancel_reason": history.cancel_reason or None,
        "reward": None if outcome is None else outcome.mean_reward,
        "reward_components": {} if outcome is None else dict(outcome.reward_components),
        "failure": None if outcome is None else plain(outcome.failure),
        "failing_turn": _failing_turn(info, history),
        "metrics": None if outcome is None else plain(outcome.metrics),
        "times": asdict(history.times(now, outcome)),
        "tools": [
            {
                "name": tool.name,
                "tool_call_id": tool.id,
                "sample": tool.sample,
                "turn": tool.chat_number,
                "returned": tool.returned is not None,
                "seconds": tool.seconds(history.ran_until(now, outcome)),
                "error": tool.returned.error if tool.returned else "",
            }
            for tool in history.tools
        ],
        "samples": {name: plain(sample, without=without) for name, sample in samples.items()},
        "annotations": [plain(each.annotation) for each in history.annotated],
        "logs": [plain(each) for each in history.logged],
        "as_of": as_of,
    }


def turn_record(info: RolloutInfo, history: History, chat: Chat, *, tokens: bool) -> dict[str, Any]:
    """Return the record of a turn."""
    answer, asked = chat.answered, chat.asked
    tools = [tool for tool in history.tools if (tool.sample, tool.chat_number) == chat.name]
    return {
        "rollout_id": info.rollout_id,
        "attempt": info.attempt,
        "sample": asked.sample,
        "turn": asked.chat_number,
        "parent_turn": asked.parent_chat,
        "new_messages": plain(asked.messages),
        "params": plain(asked.params),
        "passed": None if asked.passed is None else plain(asked.passed),
        "policy": asked.policy,
        "purpose": asked.purpose.value,
        "reply": None if answer is None else plain(answer.response, without=frozenset() if tokens else HEAVY),
        "forked": answer is not None and answer.forked,
        "seconds": None if answer is None else answer.latency,
        "response_tokens": None if answer is None else sampled(answer),
        "failures": [plain(failure) for failure in chat.failures],
        "tool_results": [plain(tool.returned) for tool in tools if tool.returned is not None],
    }


def _failing_turn(info: RolloutInfo, history: History) -> dict[str, Any] | None:
    if info.outcome is None or info.outcome.failure is None or history.last is None:
        return None
    sample, number = history.last
    return {"sample": sample, "turn": number}
