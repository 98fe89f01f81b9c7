"""The exceptions of this project. Each class has a `boundary`, which names the part that is at fault.

A failed call raises a CallError. Each gRPC status has its own class, and both sides use the same classes
(osmosis_grpc.protocol.wire.status has the table). A failed rollout raises nothing: its RolloutOutcome has a
`Failure`. If an exception escapes from the agent, the Failure gets the `boundary` of the exception.
This module depends on no transport.

    OsmosisRolloutError
    ├── CallError                  a call was refused or could not be made
    │   ├── OsmosisValidationError     a retry does not help
    │   ├── OsmosisServerError         the other side failed
    │   ├── OsmosisTransportError      the other side could not be reached
    │   └── OsmosisTimeoutError        no answer in time
    ├── ToolExecutionError         a tool failed
    │   ├── ToolArgumentError          its arguments could not be read
    │   ├── GradingError               the tests that give the reward did not run
    │   └── ToolUnavailable            the machine under it failed; the rollout ends
    ├── RolloutEndedError          a context was used after its rollout ended
    ├── AgentLoopNotFoundError     no agent loop of that name
    ├── AgentLoopValidationError   an agent loop is not valid (agent/validator.py)
    ├── LedgerError                a trainer's ledger cannot be opened, or cannot be written now
    ├── RolloutFailed              a rollout of Trainer.groups(on_failure="raise") has failed
    ├── TrainerFailed              background work that a trainer needs has failed
    └── MissingExtraError          an optional dependency is not installed
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import Any, Literal

DISTRIBUTION = "osmosis-grpc"
"""The name of this project for pip."""

Boundary = Literal["agent", "tool", "trainer", "grader", "server"]
"""The part that is at fault for a failure."""

LONGEST_PAUSE = 86_400.0
"""The longest `retry_after`, in seconds."""


class Hint(StrEnum):
    """What a caller can do about a failed call. The value is for programs; command lines have their own texts."""

    SHOW_CREDENTIAL = "pass its token as `token`"
    CHECK_CREDENTIAL = "check the `token`, or the certificate"
    USE_TLS = "pass tls=ClientTls(ca=...)"
    LEAVE_OUT_TLS = "leave out `tls`, or start it with --tls-cert and --tls-key"
    NAME_CA = "name its CA with ClientTls(ca=...)"
    SHOW_CERTIFICATE = "if it asks for a client certificate, pass tls=ClientTls(cert=..., key=...)"
    START_SERVER = "start it, or name another"


class OsmosisRolloutError(Exception):
    """The base class of all exceptions that this project raises on purpose."""

    boundary: Boundary = "agent"
    """The boundary of the Failure if this exception escapes from an agent's run()."""

    retryable = False
    """Whether a retry may succeed."""


@dataclass(eq=False, repr=False)
class CallError(OsmosisRolloutError):
    """A call was refused or could not be made. If ctx.chat raises it, the trainer is at fault."""

    boundary = "trainer"
    code = 2
    """The gRPC status code."""
    status_code = 500
    """The nearest HTTP status."""

    message: InitVar[str]
    status: InitVar[int | None] = None
    """Replaces the `status_code` of the class."""
    retry_after: float | None = field(default=None, kw_only=True)
    """The seconds to wait before a retry; None if the other side sends no valid time."""
    reason: str = field(default="", kw_only=True)
    """Why the call was refused, in upper snake case, for programs. error.proto has the list. Empty if it is unknown."""
    hint: Hint | None = field(default=None, kw_only=True)
    """What to do about it, if that is known. The text of the error ends with it."""
    reached: bool = field(default=False, kw_only=True)
    """Whether the other side had the call for a while before the connection broke."""

    def __post_init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        if status is not None:
            self.status_code = status
        if self.retry_after is not None and not 0 <= self.retry_after <= LONGEST_PAUSE:
            self.retry_after = None

    def __str__(self) -> str:
        return self.with_advice(self.hint or "")

    def with_advice(self, advice: str) -> str:
        """Return the text of the error with other advice in place of `hint`."""
        text = super().__str__()
        return f"{text}; {advice}" if advice else text

    def __init_subclass__(cls, *, code: int | None = None, status_code: int | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code
        if status_code is not None:
            cls.status_code = status_code


class OsmosisValidationError(CallError, status_code=400):
    """The request is wrong or not allowed. A retry does not help."""


class OsmosisServerError(CallError):
    """The other side failed while it answered."""


class OsmosisTransportError(CallError, status_code=503):
    """The other side could not be reached."""


class OsmosisTimeoutError(CallError, status_code=504):
    """The other side did not answer in time."""


class InvalidArgument(OsmosisValidationError, code=3):
    """Fields are out of bounds. `violations` has a (field path, problem) for each such field."""

    def __init__(self, field: str, problem: str, more: Sequence[tuple[str, str]] = (), *, reason: str = "") -> None:
        self.violations = ((field, problem), *more)
        text = "; ".join(f"{path}: {problem}" if path else problem for path, problem in self.violations)
        super().__init__(text, reason=reason)


class ContextLengthExceeded(InvalidArgument):
    """The prompt is too long for the context of the model. A program may shorten its history and try again."""

    REASON = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, tokens: int = 0, limit: int = 0, problem: str = "") -> None:
        """Keep the numbers of tokens of the prompt and of the context, or 0; `problem` replaces the message."""
        known = f"have {tokens} tokens, and the context of the model has {limit}"
        super().__init__("messages", problem or known, reason=self.REASON)
        self.tokens = tokens
        self.limit = limit


@dataclass(eq=False, repr=False, kw_only=True)
class NotFound(OsmosisValidationError, code=5, status_code=404):
    """The named object does not exist, or it belongs to another caller."""

    kind: str = ""
    name: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class AlreadyExists(OsmosisValidationError, code=6, status_code=409):
    """The id is already in use. `attempt` is the rollout's current attempt; 0 if it is unknown."""

    rollout_id: str = ""
    attempt: int = 0
    fields: tuple[str, ...] = ()
    """The paths of the fields in which an Init differs from the Init that started the rollout."""


@dataclass(eq=False, repr=False, kw_only=True)
class Aborted(OsmosisValidationError, code=10, status_code=409):
    """A newer attempt has replaced this attempt. `attempt` is the number of the newer attempt."""

    rollout_id: str = ""
    attempt: int = 0


class Superseded(Aborted):
    """The awaited attempt ends without an outcome, because a higher attempt of the rollout has replaced it."""


@dataclass(eq=False, repr=False, kw_only=True)
class FailedPrecondition(OsmosisValidationError, code=9, status_code=412):
    """The current state does not allow the call. `kind` and `subject` name the condition."""

    kind: str = ""
    subject: str = ""


class UnknownChat(FailedPrecondition):
    """The trainer does not know the earlier chat to which a chat refers. It needs the full history."""

    def __init__(self, sample: str, number: int) -> None:
        super().__init__(
            f"chat {number} of sample {sample} is not known here; send the history in full",
            kind="UNKNOWN_CHAT",
            subject=f"{sample} {number}",
        )
        self.sample = sample
        self.chat_number = number


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfRange(OsmosisValidationError, code=11, status_code=416):
    """The requested events are gone. `first_event_number` and `first_cursor` name the oldest event that is left."""

    first_event_number: int = 0
    first_cursor: str = ""


class Unauthenticated(OsmosisValidationError, code=16, status_code=401):
    """The call has no credential or a wrong one."""


class PermissionDenied(OsmosisValidationError, code=7, status_code=403):
    """The credential is valid and does not allow this call."""


class Unimplemented(OsmosisValidationError, code=12, status_code=501):
    """The other side does not know this method."""


class ResourceExhausted(CallError, code=8, status_code=429):
    """The other side is at capacity, or the message is too large. `retry_after` is set if waiting helps."""

    retryable = True


class Unavailable(OsmosisTransportError, code=14):
    """The other side is unreachable, drains or pauses."""

    retryable = True


class TlsMismatch(Unavailable):
    """The two sides do not agree about TLS. A retry does not help."""

    retryable = False


class DeadlineExceeded(OsmosisTimeoutError, code=4):
    """No answer came within the deadline."""

    retryable = True


class Internal(OsmosisServerError, code=13):
    """A bug, or an exception of the user's code."""


class ReplyUnreadable(Internal):
    """A trainer's reply to a chat cannot be read, or its parts contradict each other."""


class UnknownError(OsmosisServerError, code=2):
    """The other side answered with an unknown status."""


class DataLoss(OsmosisServerError, code=15):
    """Stored data cannot be read."""


class Cancelled(CallError, code=1, status_code=499):
    """The caller cancelled the call."""


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed. If this exception escapes from run(), the rollout ends FAILED with the boundary "tool"."""

    boundary: Boundary = "tool"

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call are not a JSON object."""


class ToolUnavailable(ToolExecutionError):
    """The machine under a tool failed, independently of the model's call.

    The model never gets this error as a tool's result, because the reward would then measure another task. The rollout
    ends FAILED with the boundary "server".
    """

    boundary: Boundary = "server"
    retryable = True


class GradingError(ToolExecutionError):
    """The tests that give the reward did not run, so there is no reward. The rollout ends FAILED."""

    boundary: Boundary = "grader"


class RolloutEndedError(OsmosisRolloutError):
    """A context was used after its rollout ended. Nothing was sent."""


class SnapshotGone(OsmosisRolloutError):
    """A rollout cannot continue from a saved sandbox, because the snapshot is gone or damaged."""

    boundary: Boundary = "server"


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop has that name."""

    def __init__(self, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = list(available)
        super().__init__(f"there is no agent loop named {name!r}; known: {self.available}")


class LedgerError(OsmosisRolloutError):
    """A trainer's ledger cannot be opened, or cannot be written now. The message names the file."""

    boundary: Boundary = "trainer"
    retryable = True


class RolloutFailed(OsmosisRolloutError):
    """A rollout of Trainer.groups() did not complete. Raised with on_failure="raise", and if every group was dropped.

    `outcome` is its RolloutOutcome.
    """

    def __init__(self, message: str, outcome: Any) -> None:
        super().__init__(message)
        self.outcome = outcome


class TrainerFailed(OsmosisRolloutError):
    """Background work that a trainer needs has failed. `job` names it.

    Every waiting call and every later call raises it. Close the trainer and make a new one.
    """

    boundary: Boundary = "trainer"

    def __init__(self, job: str, error: BaseException) -> None:
        super().__init__(f"the trainer has failed: {job}: {type(error).__name__}: {error}")
        self.job = job


class MissingExtraError(OsmosisRolloutError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(missing_extra(what, extra))


def install(requirement: str) -> str:
    """Return the command that installs a requirement of pip, such as protobuf>=6.31."""
    return f"pip install {shlex.quote(requirement)}"


def missing_extra(what: str, extra: str) -> str:
    """Return a sentence on how to install an extra from the source of this distribution."""
    needs = f"{what} needs the extra {extra!r}"
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.exists(os.path.join(checkout, "pyproject.toml")):
        return f"{needs}: pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    wheel = _wheel()
    if wheel is not None:
        return f"{needs}: pip install {shlex.quote(f'{wheel}[{extra}]')}"
    return (
        f"{needs}: pip install '.[{extra}]' in a checkout of {DISTRIBUTION}, or pip install "
        f"'PATH_TO_WHEEL[{extra}]' with the path of its wheel"
    )


def _wheel() -> str | None:
    """Return the file or folder from which pip installed this distribution; None if it is gone or not local."""
    import importlib.metadata
    import json
    from urllib.parse import unquote, urlsplit

    try:
        recorded = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urlsplit(json.loads(recorded)["url"]) if recorded else None
    path = unquote(url.path) if url is not None and url.scheme == "file" else ""
    return path if os.path.exists(path) else None


CLASSES: dict[int, type[CallError]] = {
    kind.code: kind
    for kind in (
        Cancelled, UnknownError, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists, PermissionDenied,
        ResourceExhausted, FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable, DataLoss,
        Unauthenticated,
    )
}  # fmt: skip
"""The exception class of every code except OK."""
