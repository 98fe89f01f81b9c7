"""Calls an LLM and reads its replies. Retries a call if the status or the type of its error is temporary."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.compat.agentic.config import without_keys
from osmosis_grpc.policies.anthropic import read_message
from osmosis_grpc.policies.model_http import BAD_BODY, refused
from osmosis_grpc.policies.openai import read_completion
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, Internal, OsmosisServerError, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse
from osmosis_grpc.protocol.types.messages import copy_message, dump_model
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.protocol.types.stack_frames import own_frames
from osmosis_grpc.supervise import SYSTEM, Backoff

MESSAGE_KEYS = frozenset({"content", "tool_calls"})
ADVICE = "return the reply's text, an assistant message, or the reply of the openai or anthropic package"
log = logging.getLogger(__name__)
UNREACHED = frozenset({"APIConnectionError", "ClientConnectionError", "TransportError", "URLError", "ConnectionError"})
"""Exceptions of openai, anthropic, aiohttp, httpx, urllib and requests for a failed connection."""
TIMED_OUT = frozenset({"APITimeoutError", "TimeoutException", "Timeout"})
"""Exceptions of openai, anthropic, httpx and requests for an answer that did not come in time."""


def reply_of(value: Any) -> ChatResponse:
    """Convert what an LLM function returned to a ChatResponse.

    Accepts a text; an assistant message; {"message": ..., "finish_reason": ..., "usage": ...}; a reply in OpenAI's or
    Anthropic's format; {"text": ...}; a pydantic model or an object with the fields of one of these; a ChatResponse.
    Raises Internal for anything else. A text is never tokenized: only a reply with token ids has tokens.
    """
    if isinstance(value, ChatResponse):
        return value
    if isinstance(value, str):
        return _checked({"content": value})
    try:
        body = _mapping(value)
        if "choices" in body:
            return read_completion(dict(body))
        if body.get("type") == "message" and isinstance(body.get("content"), list):
            return read_message(dict(body))
        if isinstance(body.get("message"), Mapping | str) or hasattr(body.get("message"), "content"):
            message = body["message"]
            message = {"content": message} if isinstance(message, str) else _mapping(message)
            return _checked(message, body.get("finish_reason"), body.get("usage"))
        if MESSAGE_KEYS & body.keys():
            return _checked(body, body.get("finish_reason"), body.get("usage"))
        if isinstance(body.get("text"), str):
            return _checked({"content": body["text"]}, body.get("finish_reason"), body.get("usage"))
    except BAD_BODY as error:
        raise Internal(f"llm_generate_func returned {_kind(value)} that cannot be read: {error}; {ADVICE}") from None
    raise Internal(f"llm_generate_func returned {_kind(value)}; {ADVICE}")


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dict, a model or an object, without the attributes that are None."""
    plain = dump_model(value)
    if isinstance(plain, Mapping):
        return plain
    names = ("choices", "message", "content", "tool_calls", "text", "finish_reason", "usage")
    return {name: getattr(value, name) for name in names if getattr(value, name, None) is not None}


def _checked(message: Mapping[str, Any], finish_reason: Any = None, usage: Any = None) -> ChatResponse:
    """Return a reply with a message. Raises InvalidArgument if it is not an assistant message."""
    kept = {name: value for name, value in message.items() if name not in ("finish_reason", "usage")}
    made = copy_message({"role": "assistant", "content": None} | kept, "message")
    response = ChatResponse(
        message=made,
        finish_reason=str(finish_reason or ("tool_calls" if made.get("tool_calls") else "stop")),
        usage=dict(_mapping(usage)) if usage is not None else None,
    )
    response.check()
    return response


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of the class {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often an LLM is called for one reply, and how long to pause between calls, in seconds.

    Raises ValueError naming a field that is out of bounds.
    """

    attempts: int = 3
    """The most calls for one reply, the first one included."""
    first: float = 0.5
    """The pause before the second call. It doubles with each call. Random jitter shortens a pause by up to half."""
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

    Retries 408, 429, 5xx, failed connections and timeouts, but no other error. A pause is never shorter than
    `Retry-After`. Raises LLMError.
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
    """Convert an exception of an LLM function, or of the HTTP library that it uses, to a CallError."""
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
