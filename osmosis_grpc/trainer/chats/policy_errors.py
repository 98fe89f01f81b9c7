"""Handles the exceptions of a trainer's policies.

- A CallError, such as Unavailable, refuses the chat. The agent gets this error.
- Any other exception, or a result that is not a reply, means that the policy itself has failed. The agent gets
  Internal, and the traceback is logged. If it makes a rollout or a whole group fail, the trainer raises the exception
  in the waiting program, because otherwise a training loop would continue without data.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from osmosis_grpc.protocol.errors import CallError, ContextLengthExceeded, Internal, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, Failure, FailureReason
from osmosis_grpc.protocol.types.outcome import causes_of, clip, log_traceback, printable, with_type
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)

MAX_LOGGED = 2048
"""A warning shows at most this many bytes of an error."""
MAX_TRACEBACKS = 16
"""At most this many tracebacks are logged: one for each kind of exception, whose repeats have none."""

ChatKey = tuple[str, int, str, int]
"""The rollout's id, the attempt, the sample and the number of a chat."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyFailure:
    """An exception of a policy."""

    policy: str
    """The name of the policy; empty for the default policy, which answers chats that name no policy."""
    error: BaseException
    trace: TracebackType | None
    """The traceback of the policy's call. It is kept here, because raising `error` again extends its own traceback."""

    def __str__(self) -> str:
        return f"{self.name} failed: {clip(with_type(self.error))}"

    @property
    def name(self) -> str:
        """The policy's description for messages, with its name if it has one."""
        return f"the policy {self.policy!r}" if self.policy else "the policy"

    def of_rollout(self, reported: Failure | None) -> Failure:
        """Return the failure of the rollout. `reported` is the server's failure, which may blame the agent."""
        text = str(self)
        if reported is not None and reported.boundary != "trainer":
            text = clip(f"{text}; then the {reported.boundary} failed: {reported.message}")
        return Failure("trainer", text, causes=causes_of(self.error), reason=FailureReason.CHAT_REFUSED)

    def reraise(self) -> NoReturn:
        """Raise the exception with the traceback of the policy's call."""
        raise self.error.with_traceback(self.trace)


class PolicyErrors:
    """Handles the exceptions of one trainer's policies."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.listener: Callable[[ChatKey, PolicyFailure | None], None] = lambda key, failure: None
        """Called with each failure of a policy and, after the first failure, with None for each answered chat."""
        self._any = False
        self._refusals, self._failures = Throttled(log, clock), Throttled(log, clock)
        self._known: set[tuple[str, type[BaseException], object]] = set()

    def raised(self, request: ChatRequest, error: BaseException) -> CallError:
        """Return the error to send to the agent server whose chat made the policy raise."""
        key = key_of(request)
        if not isinstance(error, CallError):
            return self.failed(key, request.policy, error)
        if isinstance(error, InvalidArgument) and not isinstance(error, ContextLengthExceeded):
            self._log(key, PolicyFailure(request.policy, error, error.__traceback__))
            return error
        again = "; the agent server asks again" if error.retryable else ""
        self._refusals.warn(f"the policy failed at {_name(key)}: {printable(clip(str(error), MAX_LOGGED))}{again}")
        return error

    def failed(self, key: ChatKey, policy: str, error: BaseException) -> CallError:
        """Return the error to send to the agent server of a chat after the policy itself has failed."""
        failure = PolicyFailure(policy, error, error.__traceback__)
        self._any = True
        self.listener(key, failure)
        return self._log(key, failure)

    def answered(self, request: ChatRequest) -> None:
        """Record that a chat has its reply."""
        if self._any:
            self.listener(key_of(request), None)

    def report(self) -> None:
        """Log how many failures were not logged."""
        self._failures.report("the policy failed at %d more chats")

    def _log(self, key: ChatKey, failure: PolicyFailure) -> CallError:
        error = failure.error
        kind = failure.policy, type(error), _place(failure.trace)
        text = f"{failure.name} failed at {_name(key)}"
        if kind not in self._known and len(self._known) < MAX_TRACEBACKS:
            self._known.add(kind)
            self._failures.warn(f"{text}\n{log_traceback(error)}", at_once=True)
        else:
            self._failures.warn(f"{text}: {printable(clip(with_type(error), MAX_LOGGED))}")
        return Internal(str(failure))


def key_of(request: ChatRequest) -> ChatKey:
    """Return the key of a chat."""
    return request.rollout_id, request.attempt, request.sample, request.chat_number


def _name(key: ChatKey) -> str:
    return f"chat {key[3]} of rollout {key[0]}"


def _place(trace: TracebackType | None) -> object:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
