"""The result of a row, and the summary of a run, as values and as JSON. docs/test.md describes them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from osmosis_grpc.protocol.types import ChatResponse, OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.types.jsontext import is_finite
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.records.evaluate.dataset import Row
from osmosis_grpc.records.reading.message_text import prompt_text

MILLION = 1_000_000
REFUSED = "REFUSED"
"""The status of a row whose rollout was not accepted, for example because get_tools raised an error."""
MOST_ERROR_BYTES = 4096
"""How many bytes of an error's text a result contains. The journal has the whole text."""


MOST_PROMPT = 200
"""The most characters of a prompt and of a label in a result."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of tokens, in dollars per million."""

    prompt: float
    reply: float

    @classmethod
    def of(cls, text: str) -> "Price":
        """Parse a text PROMPT/REPLY. Raises ValueError."""
        first, slash, second = text.partition("/")
        try:
            price = cls(float(first), float(second))
        except ValueError:
            slash = ""
        if not slash or not all(is_finite(each) and each >= 0 for each in (price.prompt, price.reply)):
            raise ValueError(f"{text!r} is not PROMPT/REPLY in dollars for a million tokens, for example 0.25/2")
        return price


def cost_of(response: ChatResponse, price: Price | None) -> float | None:
    """Return the cost of a reply in dollars: by `price` if it is given, else as reported, else None."""
    usage: Mapping[str, Any] = response.usage or {}
    if price is not None:
        counts = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
        return (counts[0] * price.prompt + counts[1] * price.reply) / MILLION
    for reported in (response.extra.get("cost"), usage.get("cost")):
        if isinstance(reported, int | float) and not isinstance(reported, bool) and is_finite(reported):
            return float(reported)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """The result of one row's rollout."""

    row_index: int
    """The number of the row in the dataset, from 0."""
    line: int
    """The line of the row in the dataset's file, from 1."""
    rollout_id: str
    status: str
    """COMPLETED, FAILED, CANCELLED, DEADLINE_EXCEEDED or REFUSED."""
    error: str | None = None
    reason: str | None = None
    """The reason of the failure, such as TOOL_EXCEPTION."""
    where: str | None = None
    """The place of the failure in the agent's code: FILE:LINE in FUNCTION."""
    reward: float | None = None
    finish_reason: str = ""
    cut: str = ""
    """Why a conversation of the rollout was cut off, such as length or max_turns; see Sample.cut. Empty if none was."""
    prompt: str = ""
    """The first line of the row's last user message, else of its last message. At most MOST_PROMPT characters."""
    label: str | None = None
    """The reference answer, at most MOST_PROMPT characters."""
    duration_ms: float = 0.0
    token_usage: Mapping[str, int] = field(default_factory=dict)
    tool_errors: int = 0
    """The number of tool calls that raised or returned an error."""
    cost: float | None = None
    """The cost of the replies in dollars; None if it is unknown."""
    attempt: int = 1
    """The attempt of the rollout. If a row has several results, the newest one counts."""
    run_index: int = 0
    """The index of this rollout among the row's runs, from 0."""
    scores: Mapping[str, float] | None = None
    """The scores by eval function; None if the run has no eval functions."""
    score_errors: Mapping[str, str] | None = None
    """The errors of failed scores, by eval function."""

    @property
    def completed(self) -> bool:
        """Whether the rollout completed."""
        return self.status == OutcomeStatus.COMPLETED

    @property
    def good(self) -> bool:
        """Whether the rollout completed and every eval function gave a score."""
        return self.completed and not self.score_errors

    @property
    def name(self) -> str:
        """The last part of the rollout's id: the row's number, followed by `run_index` if the row has several runs."""
        return self.rollout_id.rpartition("-")[2]

    def record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        found = {"success": self.completed, **asdict(self)}
        return found if self.scores is not None else {n: v for n, v in found.items() if n not in _SCORES}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "RowResult":
        """Read a result from JSON. Fields of later versions are dropped."""
        return cls(**{name: value for name, value in record.items() if name in cls.__slots__})


def result_of(row: Row, outcome: RolloutOutcome, cost: float | None, tool_errors: int) -> RowResult:
    """Return the result for an outcome."""
    metrics, failure = outcome.metrics, outcome.failure
    ended = outcome.status is not OutcomeStatus.COMPLETED
    message = failure.message if failure is not None else outcome.finish_reason or str(outcome.status)
    return RowResult(
        row_index=row.number,
        line=row.line,
        run_index=row.run_index,
        rollout_id=outcome.rollout_id,
        attempt=outcome.attempt,
        status=str(outcome.status),
        error=clip(message, MOST_ERROR_BYTES) if ended else None,
        reason=str(failure.reason) or None if failure is not None else None,
        where=failure.where or None if failure is not None else None,
        reward=outcome.mean_reward,
        finish_reason=outcome.finish_reason,
        cut=next((sample.cut for sample in outcome.samples.values() if sample.cut), ""),
        **asked(row),
        duration_ms=round(metrics.total_latency_ms, 3),
        token_usage={
            "prompt_tokens": metrics.prompt_tokens,
            "completion_tokens": metrics.response_tokens,
            "total_tokens": metrics.prompt_tokens + metrics.response_tokens,
            "num_llm_calls": metrics.num_llm_calls,
        },
        tool_errors=tool_errors,
        cost=cost,
    )


def asked(row: Row) -> dict[str, Any]:
    """Return the prompt and the label of a row, as fields of its result."""
    label = None if row.label is None else row.label[:MOST_PROMPT]
    return {"prompt": prompt_text(row.messages)[:MOST_PROMPT], "label": label}


_SCORES = ("run_index", "scores", "score_errors")
"""The fields that only a run with eval functions has."""


@dataclass(slots=True)
class Summary:
    """Sums over the finished rows of a run."""

    total: int = 0
    passed: int = 0
    failed: int = 0
    rewarded: int = 0
    """The number of rows with a reward."""
    rewards: float = 0.0
    """The sum of the rewards."""
    total_duration_ms: float = 0.0
    """The sum of the durations of the rollouts."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_llm_calls: int = 0
    cost: float | None = None
    """The cost in dollars; None if no reply has a known cost."""
    unscored: int = 0
    """The number of completed rows for which an eval function gave no score."""
    scores: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The number and the sum of the scores, by eval function."""

    def add(self, result: RowResult) -> None:
        """Count a row."""
        self.total += 1
        self.unscored += result.completed and not result.good
        for name, score in (result.scores or {}).items():
            count, total = self.scores.get(name, (0, 0.0))
            self.scores[name] = count + 1, total + score
        self.passed += result.completed
        self.failed += not result.completed
        if result.reward is not None:
            self.rewarded += 1
            self.rewards += result.reward
        self.total_duration_ms += result.duration_ms
        self.prompt_tokens += result.token_usage.get("prompt_tokens", 0)
        self.completion_tokens += result.token_usage.get("completion_tokens", 0)
        self.num_llm_calls += result.token_usage.get("num_llm_calls", 0)
        if result.cost is not None:
            self.cost = (self.cost or 0.0) + result.cost

    @property
    def mean_reward(self) -> float | None:
        """The mean over the rows with a reward, or None if there are none."""
        return self.rewards / self.rewarded if self.rewarded else None

    def record(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        return {
            "total": self.total,
            "passed": self.passed,
            "failed": self.failed,
            "mean_reward": self.mean_reward,
            "rewarded": self.rewarded,
            "total_duration_ms": round(self.total_duration_ms, 3),
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "num_llm_calls": self.num_llm_calls,
            "cost": self.cost,
        }
