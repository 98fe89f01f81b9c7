"""Repeats calls of an LLM that may succeed later. The status or the type of an error decides, never its text."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.compat.agentic.environment import without_keys
from osmosis_grpc.policies.model_http import refused
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, Internal, OsmosisServerError, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.protocol.types.stack_frames import own_frames
from osmosis_grpc.supervise import SYSTEM, Backoff

log = logging.getLogger(__name__)

UNREACHED = frozenset({"APIConnectionError", "ClientConnectionError", "TransportError", "URLError", "ConnectionError"})
"""Classes of openai, anthropic, aiohttp, httpx, urllib and requests: the connection failed."""
TIMED_OUT = frozenset({"APITimeoutError", "TimeoutException", "Timeout"})
"""Classes of openai, anthropic, httpx and requests: no answer came in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often an LLM is called for one reply. Times are in seconds.

    Raises ValueError naming a field that is out of bounds.
    """

    attempts: int = 3
    """The most calls for one reply, the first one included."""
    first: float = 0.5
    """The pause before the second call. Each later pause is twice as long. Chance shortens a pause by up to half."""
    longest: float = 30.0
    """The longest pause. A server that asks for a longer one is not called again."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: {self.attempts} is less than 1")
        if not 0 <= self.first <= self.longest:
            raise ValueError(f"first: {self.first:g} is not between 0 and longest, {self.longest:g}")


class LLMError(OsmosisServerError, code=13):
    """The LLM gave no reply. `cause` is the last error, and `attempts` is the number of calls."""

    def __init__(self, cause: CallError, attempts: int) -> None:
        calls = "1 call" if attempts == 1 else f"{attempts} calls"
        super().__init__(f"the LLM gave no reply after {calls}: {cause}")
        self.cause = cause
        self.attempts = attempts


class RetryingPolicy:
    """Asks a policy until it replies, up to `retries.attempts` times and within the request's timeout.

    429, 408, 5xx, failed connections and timeouts are retried, and no other error is. `Retry-After` sets the shortest
    pause. Raises LLMError.
    """

    def __init__(self, policy: Callable[[ChatRequest], Awaitable[ChatResponse]], retries: Retries) -> None:
        self._policy: Any = policy
        self._retries = retries

    async def __aenter__(self) -> "RetryingPolicy":
        await self._policy.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._policy.__aexit__(*exc)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        loop, attempt = asyncio.get_running_loop(), 0
        backoff = Backoff(self._retries.first, self._retries.longest, system=SYSTEM)
        deadline = None if request.timeout is None else loop.time() + request.timeout
        while True:
            attempt += 1
            try:
                async with asyncio.timeout_at(deadline):
                    reply: ChatResponse = await self._policy(request)
                    return reply
            except Exception as error:
                failure, raised = call_error(error), error
            pause = max(backoff.next(), failure.retry_after or 0.0)
            late = pause > self._retries.longest or (deadline is not None and loop.time() + pause >= deadline)
            if late or not failure.retryable or attempt == self._retries.attempts:
                raise LLMError(failure, attempt) from raised
            log.warning("call %d of the LLM failed (%s); the next one is in %.2f s", attempt, clip(str(failure)), pause)
            await asyncio.sleep(pause)


def call_error(error: Exception) -> CallError:
    """Return the CallError for an exception of an LLM function or of the HTTP library that it uses."""
    if isinstance(error, CallError):
        return error
    said = without_keys(f"{type(error).__name__}: {error}")
    response = getattr(error, "response", None)
    found = (getattr(error, name, None) for name in ("status_code", "status"))
    status = next((value for value in (*found, getattr(response, "status_code", None)) if isinstance(value, int)), None)
    if status is not None and 400 <= status < 600:
        headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
        return refused(status, said, "", headers.get("Retry-After") or headers.get("retry-after"))
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, TimeoutError) or names & TIMED_OUT:
        return DeadlineExceeded(f"the LLM gave no reply in time: {said}")
    if isinstance(error, ConnectionError | socket.gaierror) or names & UNREACHED:
        return Unavailable(f"the LLM cannot be reached: {said}")
    frames = own_frames(error)
    where = f" at {frames[-1].file}:{frames[-1].line} in {frames[-1].function}" if frames else ""
    return Internal(f"llm_generate_func raised {said}{where}")
