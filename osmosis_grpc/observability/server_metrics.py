"""All metrics of an agent server: process, calls, engine, rollouts and journal."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from osmosis_grpc.engine import Engine
from osmosis_grpc.observability.metric_families import (
    CHAT_SECONDS,
    FINISH_REASONS,
    OTHER,
    ROLLOUT_SECONDS,
    Family,
    Histogram,
    Histograms,
    Names,
    ProcessMetrics,
    Reading,
    Source,
    Summary,
    by_name,
    failures,
    single,
)
from osmosis_grpc.observability.rpc_metrics import Calls
from osmosis_grpc.protocol.types import Capacity, RolloutInfo, events
from osmosis_grpc.protocol.types.messages import ToolDict

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
MAX_TOOLS = 50
"""How many tools get a label value of their own."""
RECENT = 1024
"""The mean reward of an agent covers this many of its newest rewards."""

_TOOL_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REWARDS = (-10, -1, -0.5, 0, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 2, 5, 10)

IN_FLIGHT = Family("osmosis_rollouts_in_flight", "gauge", "Rollouts that are accepted and have not ended.", ("agent",))
ENDED = Family(
    "osmosis_rollouts_total",
    "counter",
    "Rollouts that ended. error_category says whose fault a failure is.",
    ("agent", "status", "finish_reason", "error_category"),
)
DURATION = Family(
    "osmosis_rollout_duration_seconds", "histogram", "Time from the acceptance of a rollout to its end.", ("agent",)
)
CHATS = Family("osmosis_llm_call_duration_seconds", "histogram", "Time until the trainer answered a chat.")
TOOLS = Family(
    "osmosis_tool_call_duration_seconds",
    "histogram",
    f"Time that a tool ran. Tools that no agent offers, and all beyond {MAX_TOOLS}, are {OTHER}.",
    ("tool",),
)
TOKENS = Family("osmosis_tokens_total", "counter", "Tokens of ended rollouts: prompt or response.", ("kind",))
REWARD = Family("osmosis_reward", "histogram", "Rewards. Without a sum, since rewards may be negative.", ("agent",))
REWARD_MEAN = Family("osmosis_reward_mean", "gauge", f"Mean of an agent's newest {RECENT:,} rewards.", ("agent",))
BREAKS = Family(
    "osmosis_token_prefix_breaks_total", "counter", "Segments that began because a prompt changed earlier tokens."
)
REJECTED = Family(
    "osmosis_admission_rejected_total", "counter", "Inits that were refused, by the name of the gRPC status.", ("code",)
)
LAG = Family(
    "osmosis_event_loop_lag_seconds", "histogram", "How late the event loop ran a callback, a few times a second."
)

_READ_AT_A_SCRAPE: tuple[tuple[Family, Callable[[Engine, Capacity], float]], ...] = (
    (Family("osmosis_rollouts_running", "gauge", "Rollouts whose agent runs."), lambda e, capacity: capacity.running),
    (Family("osmosis_queue_length", "gauge", "Rollouts that wait for a slot."), lambda e, capacity: capacity.queued),
    (
        Family("osmosis_agents_abandoned", "gauge", "Agents that did not stop and still take a slot."),
        lambda e, capacity: capacity.abandoned,
    ),
    (
        Family("osmosis_trajectory_events_dropped_total", "counter", "Events that the journal could not write."),
        lambda engine, c: engine.log.dropped,
    ),
    (
        Family("osmosis_callback_attempts_total", "counter", "Attempts to deliver an outcome to its trainer."),
        lambda engine, c: engine.outbox.attempts,
    ),
    (
        Family("osmosis_outcomes_undelivered", "gauge", "Outcomes on their way to their trainer."),
        lambda e, capacity: capacity.undelivered,
    ),
    (
        Family("osmosis_outcomes_expired_total", "counter", "Outcomes that were given up undelivered."),
        lambda e, capacity: capacity.expired,
    ),
)
"""The engine's metrics that have no labels, each with a function that reads it."""


class EngineMetrics:
    """The metrics of one engine. Adds itself to the engine's sinks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ends: Counter[tuple[str, ...]] = Counter()
        self._durations, self._rewards = Histograms(DURATION, ROLLOUT_SECONDS), Histograms(REWARD, _REWARDS)
        self._newest_rewards: dict[str, deque[float]] = {}
        self._chats = Histogram(CHAT_SECONDS)
        self._observe_chat = self._chats.observe
        self._tool_names = Names(MAX_TOOLS)
        self._tools = Histograms(TOOLS, _TOOL_SECONDS)
        self._prompt_tokens = self._response_tokens = self._breaks = 0
        self._lag = Histogram(_LAG_SECONDS)
        engine.log.add_sink(self._started, events.Started)
        engine.log.add_sink(self._answered, events.ChatAnswered)
        engine.log.add_sink(self._returned, events.ToolReturned)
        engine.end_sinks.append(self._ended)
        engine.watchdog.on_lag = self._lag.observe

    def _started(self, event: Any, /) -> None:
        # A rollout that an earlier process accepted starts here, too, so read the tools from its record.
        record = self._engine.context.table.find(event.rollout_id, event.attempt)
        for tool in record.tools if record is not None else ():
            self._tool_names.add(_name(tool))

    def _answered(self, event: Any, /) -> None:
        if not (event.kind.recorded_event or event.kind.forked):  # those replies come from the journal, not the model
            self._observe_chat(event.kind.latency)

    def _returned(self, event: Any, /) -> None:
        self._tools.of(self._tool_names.label(event.kind.name)).observe(event.kind.latency)

    def _ended(self, rollout: RolloutInfo, /) -> None:
        outcome = rollout.outcome
        if outcome is None:
            return
        agent = self._agent(rollout.agent_loop)
        reason = outcome.finish_reason if outcome.finish_reason in FINISH_REASONS else OTHER
        boundary = outcome.failure.boundary if outcome.failure else ""
        self._ends[agent, outcome.status, reason, boundary] += 1
        self._durations.of(agent).observe(outcome.metrics.total_latency_ms / 1000)
        self._prompt_tokens += outcome.metrics.prompt_tokens
        self._response_tokens += outcome.metrics.response_tokens
        reward = outcome.mean_reward
        if reward is not None:
            self._rewards.of(agent).observe(reward)
            self._newest_rewards.setdefault(agent, deque(maxlen=RECENT)).append(reward)
        for sample in outcome.samples.values():
            if len(sample.segments) > 1:
                self._breaks += sum(segment.drift_index is not None for segment in sample.segments)

    def _agent(self, name: str) -> str:
        """Return the label value of an agent, or OTHER if only an earlier process hosted it."""
        return name if name in self._engine.context.runnables else OTHER

    def read(self) -> Iterator[Reading]:
        """See Source."""
        engine = self._engine
        capacity = engine.capacity()
        in_flight = Counter(dict.fromkeys(engine.context.runnables, 0))
        for agent, count in engine.rollouts.in_flight().items():
            in_flight[self._agent(agent)] += count
        yield by_name(IN_FLIGHT, in_flight)
        yield from (single(family, read(engine, capacity)) for family, read in _READ_AT_A_SCRAPE)
        yield ENDED, list(self._ends.items())
        yield self._durations.read()
        yield single(CHATS, self._chats)
        yield self._tools.read()
        yield by_name(TOKENS, {"prompt": self._prompt_tokens, "response": self._response_tokens})
        yield self._rewards.read()
        yield by_name(REWARD_MEAN, {agent: sum(newest) / len(newest) for agent, newest in self._newest_rewards.items()})
        yield single(BREAKS, self._breaks)
        yield by_name(REJECTED, {_CODES[code]: count for code, count in engine.acceptance.rejected.items()})
        yield single(LAG, self._lag)


def _name(tool: ToolDict) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


ATTACHMENTS = Family("osmosis_attachments", "gauge", "Trainers that are attached.")
DRAINING = Family("osmosis_draining", "gauge", "1 while the server drains, else 0.")
JOURNAL_BYTES = Family("osmosis_journal_bytes", "gauge", "Bytes of the journal's file and of its write-ahead log.")
JOURNAL_BUDGET = Family("osmosis_journal_budget_bytes", "gauge", "The most bytes that the journal may use.")
JOURNAL_COMMITS = Family("osmosis_journal_commit_seconds", "summary", "Transactions committed, and the time they took.")
JOURNAL_FAILING = Family("osmosis_journal_failing", "gauge", "1 while the journal cannot be written, else 0.")


class ServerMetrics:
    """The metrics of one agent server. `attached` returns the number of attached trainers."""

    def __init__(self, engine: Engine, *, attached: Callable[[], int] = int) -> None:
        self.answered, self.made = Calls("server"), Calls("client")
        """The calls that the server answers, and the calls that it makes."""
        self._engine = engine
        self._attached = attached
        self._parts: tuple[Source, ...] = (ProcessMetrics(), EngineMetrics(engine), self.answered, self.made)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        for part in self._parts:
            yield from part.read()
        yield failures(self._engine.supervisor.failures)
        yield single(ATTACHMENTS, self._attached())
        yield single(DRAINING, float(self._engine.shutdown.draining))
        figures = self._engine.journal.figures()
        yield JOURNAL_BYTES, [] if figures is None else [((), figures.bytes)]
        yield JOURNAL_BUDGET, [] if figures is None else [((), figures.budget)]
        yield JOURNAL_COMMITS, [] if figures is None else [((), Summary(figures.commits, figures.commit_seconds))]
        yield JOURNAL_FAILING, [] if figures is None else [((), float(bool(self._engine.journal.problem)))]
