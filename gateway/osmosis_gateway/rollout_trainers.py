"""The trainer of a rollout started by /rollout. It streams replies, and gets the result by callbacks or by polling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_gateway import chat_bodies
from osmosis_gateway.contracts import Terms, check_sendable
from osmosis_gateway.leases import Leases
from osmosis_gateway.outgoing_calls import Base, Calls, Problem, redacted
from osmosis_gateway.rollout_results import completion_body, grader_body
from osmosis_grpc.network.target_policy import Address
from osmosis_grpc.policies import event_streams
from osmosis_grpc.protocol.errors import (
    CallError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OsmosisServerError,
    OsmosisValidationError,
    ReplyUnreadable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatRequest,
    ChatResponse,
    Receipt,
    RolloutOutcome,
    TraceContext,
    jsontext,
)
from osmosis_grpc.settings.settings import RolloutClientSettings

MODEL = "osmosis-rollout"
_OWN = ("messages", "model", "stream", "stream_options", "tools")


def error_of(raw: bytes) -> OsmosisServerError | None:
    """Return a retryable error if an answer is a stream that was cut off or failed. Otherwise return None."""
    problem = event_streams.stream_problem(raw) if event_streams.is_stream(raw) else ""
    return OsmosisServerError(f"the trainer's stream {problem}") if problem else None


def read_stream(raw: bytes) -> dict[str, Any]:
    """Return a streamed reply as if it had not been streamed. Raises ReplyUnreadable.

    A reply that is not streamed is returned unchanged.
    """
    try:
        if not event_streams.is_stream(raw):
            whole: dict[str, Any] = jsontext.parse_object(raw.decode(), "body")
            return whole
        return event_streams.read_stream(raw)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's stream cannot be read: {type(error).__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Channel:
    """A URL of a trainer with its checked address and its key."""

    calls: Calls
    base: Base
    address: Address
    key: str
    trace: TraceContext | None = None

    async def post(
        self,
        body: dict[str, Any],
        retries: int,
        path: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        answer: bool = False,
        problem: Problem = lambda raw: None,
    ) -> bytes:
        """Post a body to the URL, or to a path below it. Return the answer if `answer` is set, otherwise b"".

        Raises the errors of Calls.post().
        """
        sent = dict(headers or {})
        if self.trace is not None:
            sent |= {"traceparent": self.trace.traceparent, "tracestate": self.trace.tracestate}
        return await self.calls.post(
            self.base.url if path is None else self.base.join(path),
            jsontext.render(body).encode(),
            key=self.key,
            retries=retries,
            headers={name: value for name, value in sent.items() if value},
            address=self.address,
            answer=answer,
            problem=problem,
        )


Answered = dict[str, dict[int, str]]
"""For each result, the callbacks that were answered: the position of the channel, with the refusal or "".

When one of the two callbacks is retried, an answered one is not sent again.
"""
_MOST_ANSWERED = 10_000
"""Answered callbacks are remembered for at most this many results."""


class RolloutTrainer:
    """The trainer of one rollout. `channels` are those of its callbacks: completion, then grader if it has one.

    `answered` is shared by all objects for the same trainer.
    """

    def __init__(
        self,
        terms: Terms,
        chats: Channel,
        channels: Sequence[Channel],
        settings: RolloutClientSettings,
        leases: Leases | None,
        answered: Answered | None = None,
    ) -> None:
        self._terms = terms
        self._chats = chats
        self._channels = channels
        self._settings = settings
        self._leases = leases
        self._answered: Answered = {} if answered is None else answered

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        if request.purpose is ChatPurpose.JUDGE:
            raise FailedPrecondition(
                f"the contract {self._terms.contract.name} of POST /rollout has no chats for judging: its trainer "
                "would train on the reply"
            )
        headers = {"Accept": "text/event-stream"}
        if self._terms.contract.names_samples:
            check_sendable(request.sample, "sample", "x-sample-id")
            headers |= {"x-rollout-id": request.rollout_id, "x-sample-id": request.sample}
        raw = await self._chats.post(
            chat_body(request),
            self._settings.max_retries,
            "/chat/completions",
            headers=headers,
            answer=True,
            problem=self._problem,
        )
        try:
            return chat_bodies.reply_of(read_stream(raw), len(raw))
        except Internal as error:
            raise Internal(redacted(str(error), self._chats.key)) from None

    async def complete(self, outcome: RolloutOutcome, /) -> Receipt:
        """Send the callbacks in order, or wait until the trainer has polled the result."""
        if self._terms.contract.polled:
            if self._leases is None:
                raise Unimplemented("this gateway keeps no results that a trainer can ask for")
            return await self._leases.taken(outcome)
        key = f"{outcome.result_id} {self._terms.completion_url}"
        answered = self._answered.setdefault(key, {})
        while len(self._answered) > _MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]
        bodies = [completion_body(outcome), grader_body(outcome, self._terms)]
        for position, (channel, body) in enumerate(zip(self._channels, bodies, strict=False)):
            if position not in answered:
                try:
                    await channel.post(body, self._settings.complete_rollout_retries)
                    answered[position] = ""
                except OsmosisValidationError as error:
                    answered[position] = str(error)
        self._answered.pop(key, None)  # so that a trainer that asks again gets both callbacks again
        refusals = [refusal for refusal in answered.values() if refusal]
        if refusals:
            raise InvalidArgument("", "; ".join(refusals))
        return Receipt.RECORDED

    def _problem(self, raw: bytes) -> CallError | None:
        found = error_of(raw)
        return None if found is None else type(found)(redacted(str(found), self._chats.key))


def chat_body(request: ChatRequest) -> dict[str, Any]:
    """Return the body of a chat. The reply is always streamed."""
    params = {name: value for name, value in request.params.items() if name not in _OWN and value is not None}
    tools = {"tools": list(request.tools)} if request.tools else {}
    return (
        params
        | tools
        | {
            "messages": list(request.messages),
            "model": MODEL,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
