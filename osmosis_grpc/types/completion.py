"""How a rollout ended: a value, whatever happened."""

import math
import numbers
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from osmosis_grpc.errors import Boundary, OsmosisRolloutError
from osmosis_grpc.types.earlier import EarlierRun
from osmosis_grpc.types.messages import Message
from osmosis_grpc.types.quick import quick
from osmosis_grpc.types.requests import Group
from osmosis_grpc.types.samples import ChatRef, Sample

MAX_FAILURE_TEXT = 64 * 1024
"""Bytes of a Failure's message."""


class RolloutState(StrEnum):
    """Where a rollout stands."""

    ACCEPTED = "ACCEPTED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    REPORTING = "REPORTING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


class CompletionStatus(StrEnum):
    """How a rollout ended. CANCELLED is only ever somebody's request."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


class Outcome(StrEnum):
    """What a trainer did with a completion."""

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
    """The exceptions behind it, outermost first."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an escaped exception stands for."""
        known = _told(error)
        text = f"KeyError: {_text(error)}" if type(error) is KeyError else describe(error)  # a key alone says little
        return cls(
            known.boundary if known else "agent", clip(text), known.retryable if known else False,
            tuple(Cause(type(e).__name__, clip(_text(e))) for e in _chain(error)),
        )  # fmt: skip


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMetrics:
    """What a rollout took: the eight counters of the HTTP contract, and four times in seconds."""

    total_latency_ms: float = 0.0
    """From acceptance to the end."""
    llm_latency_ms: float = 0.0
    """All chats' latencies, added up."""
    tool_latency_ms: float = 0.0
    """All recorded tool calls' latencies, added up."""
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0
    queue_time: float = 0.0
    """Waiting for a slot."""
    model_time: float = 0.0
    """At least one chat open."""
    tool_time: float = 0.0
    """At least one tool running and no chat open."""
    overhead_time: float = 0.0
    """What remains."""


class Receipt(Protocol):
    """Whatever keeps a completion until it is confirmed: a trainer's ledger."""

    async def confirm(self) -> None:
        """The completion has been used and is not needed any more. Idempotent."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The terminal report of a rollout; exactly one per attempt."""

    rollout_id: str
    attempt: int = 1
    result_id: str = ""
    """Made by the server, once per result."""
    status: CompletionStatus
    finish_reason: str = ""
    failure: Failure | None = None
    messages: Sequence[Message] = ()
    """The conversation as the agent left it."""
    begins: ChatRef | None = None
    """The answered chat that `messages` begin with, where they do."""
    reward: float | None = None
    """Unset is not zero; a failure never carries one."""
    samples: Mapping[str, Sample] = field(default_factory=dict)
    metrics: RolloutMetrics = field(default_factory=RolloutMetrics)
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()
    """Field paths of what was left out for its size."""
    group: Group | None = None
    """The group its rollout belongs to."""
    agent_version: str = ""
    """The version of the agent loop that ran it; empty where none ran or none is known."""
    from_journal: EarlierRun | None = None
    """Set: nothing ran for this request. The rollout had ended in an earlier run of the trainer."""
    receipt: Receipt | None = field(default=None, repr=False, compare=False)
    """Set by a trainer with a ledger; used by confirm()."""

    async def confirm(self) -> None:
        """Tell the trainer's ledger that this completion has been used: it is not yielded again.

        Idempotent. Without a ledger there is nothing to tell, and nothing is done. Raises
        LedgerError when the ledger cannot be written; then it may be confirmed later.
        """
        if self.receipt is not None:
            await self.receipt.confirm()


def is_reward(value: object) -> bool:
    """Whether a value can be a reward: a finite number, and no bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except (OverflowError, ValueError):
        return False


def describe(error: BaseException) -> str:
    """An exception's text, never empty."""
    return _text(error) or type(error).__name__


def told(error: BaseException) -> str:
    """An exception's traceback, for a log: bounded, and made to be written."""
    return clip("".join(traceback.format_exception(error)), 16 * 1024)


def clip(text: str, limit: int = MAX_FAILURE_TEXT) -> str:
    """A text cut to so many bytes, and made to travel."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    mark = " [cut]"
    return raw[: limit - len(mark)].decode(errors="ignore") + mark


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _told(error: BaseException) -> OsmosisRolloutError | None:
    """The exception that says whose fault it was: this one, or the first such one of a group."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_told, error.exceptions)), None)
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
