"""The exceptions of this project, and whose fault each one is.

A failed call raises a CallError: one class for each gRPC status, the same on both sides
(osmosis_grpc.wire.status has the table). A failed rollout is a value, osmosis_grpc.types.Failure;
the `boundary` of the exception that escaped from the agent says whose fault it was. Nothing here
depends on a transport.

    OsmosisRolloutError
    ├── CallError                  a call was refused or could not be made
    │   ├── OsmosisValidationError     a retry does not help
    │   ├── OsmosisServerError         the other side failed
    │   ├── OsmosisTransportError      the other side could not be reached
    │   └── OsmosisTimeoutError        no answer in time
    ├── ToolExecutionError         a tool failed
    │   └── ToolArgumentError          its arguments could not be read
    ├── RolloutEndedError          a context was used after its rollout ended
    ├── AgentLoopNotFoundError     no agent loop of that name
    ├── AgentLoopValidationError   an agent loop is not valid (agent/validator.py)
    ├── LedgerError                a trainer's ledger cannot be opened, or cannot be written now
    ├── TrainerFailed              background work that a trainer needs has failed
    └── MissingExtraError          an optional dependency is not installed
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

__all__ = [
    "Aborted",
    "AgentLoopNotFoundError",
    "AlreadyExists",
    "CallError",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "LedgerError",
    "MissingExtraError",
    "NotFound",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "OutOfRange",
    "PermissionDenied",
    "ReplyUnreadable",
    "ResourceExhausted",
    "RolloutEndedError",
    "TlsMismatch",
    "ToolArgumentError",
    "ToolExecutionError",
    "TrainerFailed",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UnknownChat",
    "UnknownError",
]

DISTRIBUTION = "osmosis-grpc"
"""The name of this project for pip."""

Boundary = Literal["agent", "tool", "trainer", "grader", "server"]
"""Whose fault a failure is."""


LONGEST_PAUSE = 86_400.0
"""The longest `retry_after`, in seconds."""


class OsmosisRolloutError(Exception):
    """The base class of all exceptions that this project raises on purpose."""

    boundary: Boundary = "agent"
    """Whose fault the Failure is if this exception escapes from an agent's run."""

    retryable = False
    """Whether a retry may succeed."""


class CallError(OsmosisRolloutError):
    """A call was refused or could not be made. If ctx.chat raises it, it is the trainer's fault."""

    boundary: Boundary = "trainer"
    code = 2
    """The gRPC status code."""
    status_code = 500
    """The nearest HTTP status."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after if retry_after is not None and 0 <= retry_after <= LONGEST_PAUSE else None
        """Seconds after which the caller should retry; None if the other side names no valid time."""


class OsmosisValidationError(CallError):
    """The request is wrong or not allowed. A retry does not help."""

    status_code = 400


class OsmosisServerError(CallError):
    """The other side failed while it answered."""


class OsmosisTransportError(CallError):
    """The other side could not be reached."""

    status_code = 503


class OsmosisTimeoutError(CallError):
    """The other side did not answer in time."""

    status_code = 504


class InvalidArgument(OsmosisValidationError):
    """Fields are out of bounds. `violations` has a (field path, problem) for each."""

    code = 3

    def __init__(self, field: str, problem: str, more: Sequence[tuple[str, str]] = ()) -> None:
        self.violations = ((field, problem), *more)
        super().__init__("; ".join(f"{path}: {text}" if path else text for path, text in self.violations))


class NotFound(OsmosisValidationError):
    """The named object does not exist, or it belongs to another caller."""

    code = 5
    status_code = 404

    def __init__(self, message: str, *, kind: str = "", name: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name


class AlreadyExists(OsmosisValidationError):
    """The id is already in use. `attempt` is the rollout's current attempt; 0 if it is unknown."""

    code = 6
    status_code = 409

    def __init__(self, message: str, *, rollout_id: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.rollout_id = rollout_id
        self.attempt = attempt


class Aborted(OsmosisValidationError):
    """A newer attempt has replaced this one. `attempt` is the newer one."""

    code = 10
    status_code = 409

    def __init__(self, message: str, *, rollout_id: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.rollout_id = rollout_id
        self.attempt = attempt


class FailedPrecondition(OsmosisValidationError):
    """The current state does not allow the call. `kind` and `subject` name the condition."""

    code = 9
    status_code = 412

    def __init__(self, message: str, *, kind: str = "", subject: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.subject = subject


class UnknownChat(FailedPrecondition):
    """The trainer does not know the earlier chat that a chat refers to. It needs the full history."""

    def __init__(self, sample: str, number: int) -> None:
        super().__init__(
            f"chat {number} of sample {sample} is not known here; send the history in full",
            kind="UNKNOWN_CHAT",
            subject=f"{sample} {number}",
        )
        self.sample = sample
        self.number = number


class OutOfRange(OsmosisValidationError):
    """The requested events are gone. `first_number` and `first_cursor` are the first that are left."""

    code = 11
    status_code = 416

    def __init__(self, message: str, *, first_number: int = 0, first_cursor: str = "") -> None:
        super().__init__(message)
        self.first_number = first_number
        self.first_cursor = first_cursor


class Unauthenticated(OsmosisValidationError):
    """The call has no credential, or a wrong one."""

    code = 16
    status_code = 401


class PermissionDenied(OsmosisValidationError):
    """The credential is valid and does not allow this call."""

    code = 7
    status_code = 403


class Unimplemented(OsmosisValidationError):
    """The other side does not know this method."""

    code = 12
    status_code = 501


class ResourceExhausted(CallError):
    """The other side is at capacity, or the message is too large. It has `retry_after` if waiting helps."""

    code = 8
    status_code = 429
    retryable = True


class Unavailable(OsmosisTransportError):
    """The other side is unreachable, drains or pauses."""

    code = 14
    retryable = True


class TlsMismatch(Unavailable):
    """The two sides do not agree about TLS. A retry does not help."""

    retryable = False


class DeadlineExceeded(OsmosisTimeoutError):
    """No answer came within the deadline."""

    code = 4
    retryable = True


class Internal(OsmosisServerError):
    """A bug, or an exception of the user's code."""

    code = 13


class ReplyUnreadable(Internal):
    """A trainer's reply to a chat cannot be read, or its parts contradict each other."""


class UnknownError(OsmosisServerError):
    """The other side answered with an unknown status."""

    code = 2


class DataLoss(OsmosisServerError):
    """Stored data cannot be read."""

    code = 15


class Cancelled(CallError):
    """The caller cancelled the call."""

    code = 1
    status_code = 499


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed. If it escapes from run, the rollout ends FAILED (tool)."""

    boundary: Boundary = "tool"

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


class ToolArgumentError(ToolExecutionError):
    """The arguments of a tool call are not a JSON object."""


class RolloutEndedError(OsmosisRolloutError):
    """A context was used after its rollout ended; nothing was sent."""


class AgentLoopNotFoundError(OsmosisRolloutError):
    """No agent loop has that name."""

    def __init__(self, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = sorted(available)
        known = ", ".join(self.available) or "none"
        super().__init__(f"there is no agent loop named {name!r}; known: {known}")


class LedgerError(OsmosisRolloutError):
    """A trainer's ledger cannot be opened, or cannot be written now. The message names the file."""

    boundary: Boundary = "trainer"
    retryable = True


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


def missing_extra(what: str, extra: str) -> str:
    """Returns a sentence that says how to install an extra from the source of this distribution."""
    needs = f"{what} needs the extra {extra!r}"
    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
    """Returns the file or the folder that pip installed this distribution from; None if it is gone or not local."""
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
