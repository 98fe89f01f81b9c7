"""The outcome of a rollout, and its parts."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from osmosis_grpc.protocol.errors import Boundary, OsmosisRolloutError, OsmosisServerError
from osmosis_grpc.protocol.types.earlier_run import EarlierRun
from osmosis_grpc.protocol.types.failure_reasons import FailureReason, reason_of
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.jsontext import repaired
from osmosis_grpc.protocol.types.messages import Message
from osmosis_grpc.protocol.types.requests import Group
from osmosis_grpc.protocol.types.samples import Cut, Dropped, Sample, Segment, check_choices
from osmosis_grpc.protocol.types.stack_frames import StackFrame, is_own, own_frames

MAX_FAILURE_TEXT = 64 * 1024
"""The most bytes of a Failure's message."""

MAX_TRACEBACK = 16 * 1024
"""About the most characters of a traceback in a log."""


class RolloutState(StrEnum):
    """The state of a rollout."""

    ACCEPTED = "ACCEPTED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    REPORTING = "REPORTING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


class OutcomeStatus(StrEnum):
    """How a rollout ended. It ends CANCELLED only if a caller requested that."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


class Receipt(StrEnum):
    """What a trainer did with an outcome."""

    RECORDED = "RECORDED"
    ALREADY_RECORDED = "ALREADY_RECORDED"
    CONFLICT = "CONFLICT"


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception of a chain."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout did not complete."""

    boundary: Boundary
    message: str
    retryable: bool = False
    causes: tuple[Cause, ...] = ()
    """The chain of exceptions that caused the failure, outermost first."""
    file: str = ""
    """The file of the agent's own code in which an exception was raised; empty if it is unknown.

    The path is relative to the server's working folder, or to the folder of sys.path that has the file."""
    line: int = 0
    """The line in `file`, from 1; 0 if it is unknown."""
    frames: tuple[StackFrame, ...] = ()
    """The last lines of the agent's own code in the traceback, at most 5. The innermost line is last."""
    reason: FailureReason | str = ""
    """The kind of the failure. An old server sends no reason. A newer server can send a reason that is a plain str."""

    @property
    def where(self) -> str:
        """The place of the failure, as "FILE:LINE in FUNCTION"; empty if it is unknown."""
        function = f" in {self.frames[-1].function}" if self.frames else ""
        return f"{self.file}:{self.line}{function}" if self.file else ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the failure for an exception that escaped from an agent.

        If the trainer failed while it answered a chat, for example because of its policy, no line of the agent is
        named.
        """
        known = _first_blamed(error)
        failure = cls(
            known.boundary if known else "agent",
            clip(describe(error) if error is known else with_type(error)),
            known.retryable if known else False,
            causes_of(error),
            reason=reason_of(known),
        )
        return failure if isinstance(known, OsmosisServerError) else failure.raised_at(error)

    def raised_at(self, error: BaseException) -> "Failure":
        """Return this failure with the place and the frames of an exception."""
        frames = own_frames(error)
        if not frames:
            return self
        return replace(self, file=frames[-1].file, line=frames[-1].line, frames=frames)


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMetrics:
    """The metrics of a rollout: the eight numbers of the HTTP contract, and four durations in seconds."""

    total_latency_ms: float = 0.0
    """The time from the acceptance to the end."""
    llm_latency_ms: float = 0.0
    """The sum of the latencies of all chats."""
    tool_latency_ms: float = 0.0
    """The sum of the latencies of all tool calls. The agent records a latency, or the tool helpers measure it."""
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    """The number of tool calls. A tool call counts once if the agent records it, a helper runs it, or a tool message
    answers it."""
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0
    queue_time: float = 0.0
    """Seconds in the queue."""
    model_time: float = 0.0
    """Seconds with at least one open chat."""
    tool_time: float = 0.0
    """Seconds with at least one running tool and no open chat."""
    overhead_time: float = 0.0
    """The remaining seconds."""


class Confirmable(Protocol):
    """Keeps an outcome until it is confirmed. A trainer's ledger makes it."""

    async def confirm(self) -> None:
        """Record that the outcome has been used and is no longer needed. Idempotent."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOutcome:
    """The final report of a rollout. Each attempt has exactly one, except an attempt that a higher one supersedes."""

    rollout_id: str
    attempt: int = 1
    result_id: str = ""
    """The id of this result, made by the server."""
    status: OutcomeStatus
    finish_reason: str = ""
    failure: Failure | None = None
    reward: float | None = None
    """The reward; None if there is no reward, which differs from 0. Only a rollout that completed has a reward.

    If there is one sample, its reward is the same. A rollout with several samples can have rewards of the samples only.
    """
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward. If there is one sample, its parts are the same."""
    samples: Mapping[str, Sample] = field(default_factory=dict)
    """The samples by name, in the order of their creation."""
    metrics: RolloutMetrics = field(default_factory=RolloutMetrics)
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    """The paths of the fields that were left out because of their size."""
    group: Group | None = None
    evaluation: bool = False
    """Whether the rollout was an evaluation. An evaluation is never trained on."""
    agent_version: str = ""
    """The version of the agent loop that ran the rollout; empty if it is unknown or no agent ran."""
    from_journal: EarlierRun | None = None
    """Set if the rollout ended in an earlier run of the trainer. Then nothing ran for this request."""
    confirmation: Confirmable | None = field(default=None, repr=False, compare=False)
    """Used by confirm(). Only a trainer with a ledger sets it."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation of sample `main`, or of the first sample; empty without samples.

        Samples that are not for training, such as one for a title, come after all others.
        """
        trained = {name: sample for name, sample in self.samples.items() if sample.train is not False} or self.samples
        main = trained.get("main") or next(iter(trained.values()), None)
        return main.messages if main is not None else ()

    async def confirm(self) -> None:
        """Record in the trainer's ledger that this outcome has been used. The trainer does not yield it again.

        Waits for a commit. Concurrent calls share one, so confirm many outcomes with asyncio.gather(). Idempotent. Does
        nothing without a ledger. Raises LedgerError if the ledger cannot be written now; the call can be repeated.
        """
        if self.confirmation is not None:
            await self.confirmation.confirm()

    def trainable_samples(self, *, cut: Cut = "train", dropped: Dropped = "skip") -> dict[str, Sample]:
        """Return the samples to train on, by name, each with its reward.

        See reward_of() for the reward of a sample. Leaves out samples without a reward, samples without exact tokens,
        and samples with `train=False`, on which the agent's author does not want to train. Returns no samples for a
        rollout that did not complete, or that was an evaluation. `not_trainable_reason` then has the reason.

        Args:
            cut: What to do with samples that a limit has cut: "train" on them, "mask" all their tokens, or "skip" them.
            dropped: Whether to "skip" the segments of replies that the agent dropped, or to "train" on them.

        Raises:
            InvalidArgument: Another choice is given.
        """
        check_choices(cut, dropped)
        if self.evaluation or self.status is not OutcomeStatus.COMPLETED:
            return {}
        rewards = {name: self.reward_of(name) for name, sample in self.samples.items() if not lacks(sample)}
        found = {
            name: replace(self.samples[name], reward=reward, segments=_chosen(self.samples[name], cut, dropped))
            for name, reward in rewards.items()
            if reward is not None
        }
        return {name: sample for name, sample in found.items() if sample.segments}

    def reward_of(self, sample: str) -> float | None:
        """Return the sample's own reward, or the rollout's reward if the sample has none.

        If the rollout has a single sample, the rollout's reward is preferred.
        """
        own = self.samples[sample].reward if sample in self.samples else None
        first, second = (self.reward, own) if len(self.samples) == 1 else (own, self.reward)
        return second if first is None else first

    @property
    def mean_reward(self) -> float | None:
        """The rollout's reward, or the mean of the samples' rewards if it has none; None without any reward."""
        if self.reward is not None:
            return self.reward
        rewards = [sample.reward for sample in self.samples.values() if sample.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def not_trainable_reason(self) -> str:
        """Why trainable_samples() returns no samples; an empty string if it returns samples."""
        if self.evaluation:
            return "it is an evaluation"
        if self.status is not OutcomeStatus.COMPLETED:
            return f"it ended {self.status}" + (f": {self.failure.message}" if self.failure is not None else "")
        if self.trainable_samples():
            return ""
        if not self.samples:
            return "no reply of the policy is in it"
        reasons = {name: lacks(sample) for name, sample in self.samples.items()}
        listed = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        if all(reasons.values()):
            return "; ".join(listed)
        return "its agent dropped all replies" if self.trainable_samples(dropped="train") else "it has no reward"


def _chosen(sample: Sample, cut: Cut, dropped: Dropped) -> tuple[Segment, ...]:
    if sample.cut and cut == "skip":
        return ()
    found = sample.segments
    if dropped == "skip" and sample.dropped_chats:
        found = tuple(segment for segment in found if not segment.dropped)
    return tuple(segment.masked() for segment in found) if sample.cut and cut == "mask" else found


def lacks(sample: Sample) -> str:
    """Return why a sample cannot be trained on, apart from its reward; an empty string if it can."""
    if sample.train is False:
        return "its author does not want it trained on (train=False)"
    if not sample.trainable:
        return sample.not_trainable_reason or "it is not trainable"
    if not sample.segments or any(segment.referred for segment in sample.segments):
        return "its tokens were left out"
    return ""


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """Return an exception, followed by the chain of exceptions that caused it."""
    return tuple(Cause(type(e).__name__, clip(_text(e))) for e in _chain(error))


def describe(error: BaseException) -> str:
    """Return the text of an exception, or the name of the exception's type if the text is empty."""
    return _text(error) or type(error).__name__


def with_type(error: BaseException) -> str:
    """Return "TYPE: TEXT" for an exception, or the name of the exception's type if the text is empty.

    A text such as 'score' or "list index out of range" explains little without the type.
    """
    text, kind = _text(error), type(error).__name__
    return text if text.startswith(f"{kind}:") else f"{kind}: {text}" if text else kind


def log_traceback(error: BaseException) -> str:
    """Return the traceback of an exception of the user's code for a log.

    It begins with the first line of that code. It is cut to about MAX_TRACEBACK and has no control characters.
    """
    shown = traceback.TracebackException.from_exception(error)
    for each in _chained(shown):
        del each.stack[: next((at for at, frame in enumerate(each.stack) if is_own(frame.filename)), 0)]
    text = "".join(shown.format())
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n  [cut]\n{text[-half:]}"  # the exception itself is at the end
    return printable(text, keep="\n\t")


def _chained(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception with its causes, its contexts and the exceptions of a group."""
    left = [shown]
    while left:  # a loop can chain more exceptions than functions can be nested
        each = left.pop()
        yield each
        left += filter(None, (each.__cause__, each.__context__, *(each.exceptions or ())))


def printable(text: str, keep: str = "") -> str:
    """Return a text with its control characters and other invisible characters escaped.

    `keep` names characters that stay, such as a line feed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def clip(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """Return a text cut to `limit` bytes of UTF-8, with U+FFFD for unpaired surrogates."""
    raw = repaired(text).encode()
    if len(raw) <= limit:
        return raw.decode()
    mark = " [cut]"
    return raw[: limit - len(mark)].decode(errors="ignore") + mark


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _first_blamed(error: BaseException) -> OsmosisRolloutError | None:
    """Return the exception whose class has the `boundary`: `error`, or the first such exception in a group.

    Returns None for a foreign exception.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_first_blamed, error.exceptions)), None)
    return error if isinstance(error, OsmosisRolloutError) else None


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found and len(found) < 16:
        found.append(link)
        if isinstance(link, BaseExceptionGroup):
            link = link.exceptions[0]
        else:
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return found
