"""Measures one rollout: counters, and how its time was spent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.protocol.types import ChatResponse, OutcomeSummary, RolloutMetrics

_MOST = 2**48
"""Larger token counts are ignored, because their sums would not fit into the protocol's field."""
_LONGEST = 3e11
"""The largest Duration, in seconds."""


@dataclass(slots=True, eq=False)
class Meter:
    """The counters of one rollout. Times are monotonic, in seconds."""

    _accepted: float
    _started: float | None = None
    _last: float = field(init=False)
    _open_chats: int = 0
    _open_tools: int = 0
    _model_time: float = 0.0
    _tool_time: float = 0.0
    _llm_latency: float = 0.0
    _tool_latency: float = 0.0
    _llm_calls: int = 0
    _tool_calls: int = 0
    _runs: dict[str, int] = field(default_factory=dict)
    _run_latency: float = 0.0
    _prompt_tokens: int = 0
    _response_tokens: int = 0
    _max_context: int = 0

    def __post_init__(self) -> None:
        self._last = self._accepted

    def started(self, now: float) -> float:
        """Record the start of the agent. Return how long the rollout waited, in seconds."""
        self._started = now
        return now - self._accepted

    def count_open(self, kind: str, by: int, now: float) -> None:
        """Record that a "chat" or a "tool" began (`by` is 1) or ended (-1)."""
        self._tick(now)
        if kind == "chat":
            self._open_chats += by
        else:
            self._open_tools += by

    def tool_ran(self, call_id: str, latency: float) -> None:
        """Count a tool that execute_tool_calls ran; `call_id` is the id of the tool call."""
        self._runs[call_id] = self._runs.get(call_id, 0) + 1
        self._run_latency += latency

    def answered(self, response: ChatResponse, prompt_ids: int, latency: float) -> None:
        """Count an answered chat.

        `prompt_ids` is the length of the prompt, for replies whose usage does not have it.
        """
        usage: Mapping[str, Any] = response.usage or {}
        reply_ids = len(response.tokens.ids) if response.tokens is not None else 0
        prompt = _count(usage.get("prompt_tokens"), prompt_ids)
        reply = _count(usage.get("completion_tokens"), reply_ids)
        self._llm_calls += 1
        self._llm_latency += latency
        self._prompt_tokens += prompt
        self._response_tokens += reply
        self._max_context = max(self._max_context, prompt + reply)

    def so_far(self) -> OutcomeSummary:
        """Return the counts of an unfinished rollout."""
        return OutcomeSummary(
            chats=self._llm_calls, response_tokens=self._response_tokens, prompt_tokens=self._prompt_tokens
        )

    def tool_recorded(self, latency_ms: float) -> None:
        """Count a tool call that the agent recorded."""
        self._tool_calls += 1
        self._tool_latency = min(_LONGEST, self._tool_latency + latency_ms / 1000)

    def total(self, now: float, tool_messages: Mapping[str, int]) -> RolloutMetrics:
        """Return the metrics at the end. `tool_messages` has the number of tool messages for each call id.

        Tool calls are counted in three ways: calls that execute_tool_calls runs, calls that a message answers, and
        calls that the agent records. Each count may be too low, so the result is the largest one.
        """
        self._tick(now)
        runs, recorded = self._runs, self._tool_calls
        seen = sum(max(runs.get(key, 0), tool_messages.get(key, 0)) for key in runs.keys() | tool_messages.keys())
        by_agent = self._tool_latency and recorded >= sum(runs.values())
        tool_latency = self._tool_latency if by_agent else self._run_latency
        queue = (now if self._started is None else self._started) - self._accepted
        total = now - self._accepted
        tool = self._tool_time or min(self._tool_latency, max(0.0, total - queue - self._model_time))
        return RolloutMetrics(
            total_latency_ms=total * 1000,
            llm_latency_ms=self._llm_latency * 1000,
            tool_latency_ms=tool_latency * 1000,
            num_llm_calls=self._llm_calls,
            num_tool_calls=max(recorded, seen),
            prompt_tokens=self._prompt_tokens,
            response_tokens=self._response_tokens,
            max_context_tokens=self._max_context,
            queue_time=queue,
            model_time=self._model_time,
            tool_time=tool,
            overhead_time=max(0.0, total - queue - self._model_time - tool),
        )

    def _tick(self, now: float) -> None:
        if self._open_chats:
            self._model_time += now - self._last
        elif self._open_tools:
            self._tool_time += now - self._last
        self._last = now


def _count(value: object, fallback: int) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST else fallback
