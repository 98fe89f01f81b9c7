"""The error vocabulary: what may be raised, and whose fault it was.

Two planes, never mixed. A call that failed is a CallError: one class per gRPC status, the
same on both ends of the wire (osmosis_grpc.wire.status holds the table). A rollout that
failed is a value, osmosis_grpc.types.Failure; the `boundary` of the exception that escaped
from the agent says who is named in it. Nothing here knows a transport.

    OsmosisRolloutError
    ├── CallError                  a call was refused or could not be made
    │   ├── OsmosisValidationError     asking again will not help
    │   ├── OsmosisServerError         the other side broke
    │   ├── OsmosisTransportError      the other side could not be reached
    │   └── OsmosisTimeoutError        no answer in time
    ├── ToolExecutionError         a tool failed
    │   └── ToolArgumentError          its arguments could not be read
    ├── RolloutEndedError          a context was used after its rollout ended
    ├── AgentLoopNotFoundError     no agent loop of that name
    ├── AgentLoopValidationError   an agent loop is not valid (agent/validator.py)
    ├── LedgerError                a trainer's ledger cannot be opened, or not be written now
    ├── TrainerFailed              background work that a trainer cannot do without has failed
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
"""The name that pip knows this project by."""

Boundary = Literal["agent", "tool", "trainer", "grader", "server"]
"""Who failed."""


LONGEST_PAUSE = 86_400.0
"""Seconds; nobody is asked to wait longer."""


class OsmosisRolloutError(Exception):
    """The root of everything this project raises on purpose."""

    boundary: Boundary = "agent"
    """Who is named in the Failure when this escapes from an agent's run."""

    retryable = False
    """Whether the same thing, tried again, may succeed."""


class CallError(OsmosisRolloutError):
    """A call was refused or could not be made. Raised by ctx.chat, its fault is the trainer's."""

    boundary: Boundary = "trainer"
    code = 2
    """The gRPC status code it travels as."""
    status_code = 500
    """The nearest HTTP status."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        sensible = retry_after is not None and 0 <= retry_after <= LONGEST_PAUSE
        self.retry_after = retry_after if sensible else None
        """Seconds after which the other side wants to be asked again, if it said so sensibly."""


class OsmosisValidationError(CallError):
    """The request is wrong, or not allowed; asking again will not help."""

    status_code = 400


class OsmosisServerError(CallError):
    """The other side broke while answering."""


class OsmosisTransportError(CallError):
    """The other side could not be reached."""

    status_code = 503


class OsmosisTimeoutError(CallError):
    """The other side did not answer in time."""

    status_code = 504


class InvalidArgument(OsmosisValidationError):
    """A field is out of bounds. `violations` names each: (field path, what is wrong)."""

    code = 3

    def __init__(self, field: str, problem: str, more: Sequence[tuple[str, str]] = ()) -> None:
        self.violations = ((field, problem), *more)
        super().__init__("; ".join(f"{path}: {text}" if path else text for path, text in self.violations))


class NotFound(OsmosisValidationError):
    """There is no such thing, or it is not the caller's."""

    code = 5
    status_code = 404

    def __init__(self, message: str, *, kind: str = "", name: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name


class AlreadyExists(OsmosisValidationError):
    """The id is taken by something else. `attempt` is the rollout's current one, where known."""

    code = 6
    status_code = 409

    def __init__(self, message: str, *, rollout_id: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.rollout_id = rollout_id
        self.attempt = attempt


class Aborted(OsmosisValidationError):
    """A newer attempt stands. `attempt` is that one."""

    code = 10
    status_code = 409

    def __init__(self, message: str, *, rollout_id: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.rollout_id = rollout_id
        self.attempt = attempt


class FailedPrecondition(OsmosisValidationError):
    """The state of things does not allow it: `kind` and `subject` say which."""

    code = 9
    status_code = 412

    def __init__(self, message: str, *, kind: str = "", subject: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.subject = subject


class UnknownChat(FailedPrecondition):
    """The trainer does not know the earlier chat that a chat refers to: it wants the history in full."""

    def __init__(self, sample: str, number: int) -> None:
        super().__init__(
            f"chat {number} of sample {sample} is not known here; send the history in full",
            kind="UNKNOWN_CHAT",
            subject=f"{sample} {number}",
        )
        self.sample = sample
        self.number = number


class OutOfRange(OsmosisValidationError):
    """The events asked for are gone; these are the first still kept."""

    code = 11
    status_code = 416

    def __init__(self, message: str, *, first_number: int = 0, first_cursor: str = "") -> None:
        super().__init__(message)
        self.first_number = first_number
        self.first_cursor = first_cursor


class Unauthenticated(OsmosisValidationError):
    """No credential, or a wrong one."""

    code = 16
    status_code = 401


class PermissionDenied(OsmosisValidationError):
    """A good credential, for something else."""

    code = 7
    status_code = 403


class Unimplemented(OsmosisValidationError):
    """The other side does not know this call."""

    code = 12
    status_code = 501


class ResourceExhausted(CallError):
    """At capacity, or too large. With `retry_after` when waiting helps."""

    code = 8
    status_code = 429
    retryable = True


class Unavailable(OsmosisTransportError):
    """Not there, draining, or pausing."""

    code = 14
    retryable = True


class TlsMismatch(Unavailable):
    """One side speaks TLS in another way than the other expects, or not at all; asking again will not help."""

    retryable = False


class DeadlineExceeded(OsmosisTimeoutError):
    """No answer within the deadline."""

    code = 4
    retryable = True


class Internal(OsmosisServerError):
    """A bug, or a hook of the user's that raised."""

    code = 13


class ReplyUnreadable(Internal):
    """A trainer's reply to a chat cannot be read, or contradicts itself."""


class UnknownError(OsmosisServerError):
    """The other side answered with no status that says more."""

    code = 2


class DataLoss(OsmosisServerError):
    """What was stored cannot be read."""

    code = 15


class Cancelled(CallError):
    """The call was given up by the caller."""

    code = 1
    status_code = 499


class ToolExecutionError(OsmosisRolloutError):
    """A tool failed. Raised out of run, it ends the rollout FAILED (tool)."""

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
    """No agent loop of that name is known."""

    def __init__(self, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = sorted(available)
        known = ", ".join(self.available) or "none"
        super().__init__(f"there is no agent loop named {name!r}; known: {known}")


class LedgerError(OsmosisRolloutError):
    """A trainer's ledger cannot be opened, or cannot be written at the moment. Names the file."""

    boundary: Boundary = "trainer"
    retryable = True


class TrainerFailed(OsmosisRolloutError):
    """Background work that a trainer cannot do without has failed. `job` names it.

    Every call that waits raises this, and so does every later call. Close the trainer and make a new one.
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
    """Returns the sentence that says how to install an extra: from where this distribution itself came."""
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
    """Returns the file or the folder that pip installed this distribution from; None when it is gone or elsewhere."""
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
