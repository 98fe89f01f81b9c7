"""Calls the policy, counts the calls in flight and keeps the policy's version."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from osmosis_grpc import supervise
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, TokenBlock, VersionSpan
from osmosis_grpc.supervise import OnFailure, Supervisor, job
from osmosis_grpc.trainer.chats.policy_errors import PolicyErrors
from osmosis_grpc.trainer.chats.policy_table import PolicyTable
from osmosis_grpc.trainer.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from osmosis_grpc.observability.spans import TrainerSpans

SAMPLE = job("trainer.sample", OnFailure.RAISE)
KEEP = job("trainer.keep_reply", OnFailure.REPORT, "callback")
CANCEL = job("trainer.cancel_policy", OnFailure.REPORT, "callback")

Keep = Callable[[object], bool]
"""Takes the reply or the exception of a policy call. Returns whether the chat is answered."""


@dataclass(frozen=True, slots=True, eq=False)
class _PolicyCall:
    """A call of the policy that has not ended."""

    began: float
    keep: Keep
    span: "Span | None" = None


class Sampler:
    """The policies of one trainer. Used on the event loop's thread."""

    def __init__(self, policies: PolicyTable, metrics: Metrics, supervisor: Supervisor) -> None:
        self.version = ""
        """The version that the next calls get as ChatRequest.version."""
        self.errors = PolicyErrors(supervisor.system.monotonic)
        self._policies = policies
        self._metrics = metrics
        self._supervisor = supervisor
        self._monotonic = supervisor.system.monotonic
        self.spans: TrainerSpans | None = None
        """Makes the spans of policy calls; None if traces are off."""
        self._calls: set[_PolicyCall] = set()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def in_flight(self) -> int:
        """How many policy calls have not ended."""
        return len(self._calls)

    def sample(self, request: ChatRequest, keep: Keep) -> "asyncio.Future[Any] | None":
        """Call the policy of a chat, and then `keep` with the result. Return the task of an async policy, else None.

        Raises InvalidArgument if the chat names an unknown policy.
        """
        policy = self._policies.of(request.policy)
        if self.spans is None:
            return self._call(policy, request, keep)
        with self.spans.chat(request) as span:  # the task of an async policy copies the context of the span
            return self._call(policy, request, keep, span)

    def _call(
        self, policy: Policy, request: ChatRequest, keep: Keep, span: "Span | None" = None
    ) -> "asyncio.Future[Any] | None":
        call = _PolicyCall(self._monotonic(), keep, span)
        self._calls.add(call)
        ended = partial(self._supervisor.call, KEEP, self._keep, call, report=partial(self._keep, call))
        try:
            reply = policy(request)
        except Exception as error:
            ended(error)
            return None
        if isinstance(reply, ChatResponse) or not inspect.isawaitable(reply):
            ended(reply)
            return None
        task = supervise.future(SAMPLE, reply)
        task.add_done_callback(ended)
        cancel: Callable[[ChatRequest], object] | None = getattr(policy, "cancel", None)
        if cancel is not None:
            task.add_done_callback(partial(self._stopped, cancel, request))
        return task

    def _stopped(
        self, cancel: Callable[[ChatRequest], object], request: ChatRequest, task: "asyncio.Future[Any]"
    ) -> None:
        if task.cancelled():
            self._supervisor.call(CANCEL, cancel, request, report=lambda error: None)

    def idle(self, *, wait: bool) -> "asyncio.Future[None]":
        """Return a future that is done when no policy call is in flight. Without `wait`, it is done at once."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if wait and self.in_flight:
            self._waiting.append(future)
        else:
            future.set_result(None)
        return future

    def resumed(self) -> None:
        """Fail every idle() that still waits with FailedPrecondition, because policy calls may begin again."""
        error = FailedPrecondition("the trainer was resumed before it was idle")
        for future in self._take_waiting():
            future.set_exception(error)
            future.exception()  # no error is logged if the caller has left

    def _keep(self, call: "_PolicyCall", reply: object) -> None:
        if isinstance(reply, asyncio.Future):
            reply = _cancelled(reply) if reply.cancelled() else reply.exception() or reply.result()
        self._calls.discard(call)
        if call.span is not None and self.spans is not None:
            self.spans.answered(call.span, reply)
        try:
            if call.keep(reply) and isinstance(reply, ChatResponse):
                self._metrics.answered(reply, self._monotonic() - call.began)
            else:
                self._metrics.unanswered()
        finally:
            if not self._calls:
                for future in self._take_waiting():
                    future.set_result(None)

    def _take_waiting(self) -> "list[asyncio.Future[None]]":
        waiting, self._waiting = self._waiting, []
        return [future for future in waiting if not future.done()]


def _cancelled(task: "asyncio.Future[Any]") -> asyncio.CancelledError:
    try:
        task.result()
    except asyncio.CancelledError as error:
        return error
    raise AssertionError("the task was not cancelled")


def versioned(response: ChatResponse, version: str) -> ChatResponse:
    """Return the reply. If the policy set no versions, the reply's tokens get this version."""
    tokens = response.tokens
    if not version or response.versions or not isinstance(tokens, TokenBlock) or not len(tokens.ids):
        return response
    return replace(response, versions=(VersionSpan(version, len(tokens.ids)),))


def entered(policy: object) -> AbstractAsyncContextManager[Any]:
    """Return the policy if it is an async context manager, otherwise an empty context."""
    return policy if isinstance(policy, AbstractAsyncContextManager) else nullcontext()


def version_text(version: str | int) -> str:
    """Return a version as text. Raises TypeError if it is neither text nor a whole number."""
    if isinstance(version, bool) or not isinstance(version, str | int):
        raise TypeError(f"version: is a {type(version).__name__}; use a str or an int, for example 'step-7' or 7")
    return str(version)
