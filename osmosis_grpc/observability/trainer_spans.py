"""The spans of a trainer. A rollout is the span `invoke_agent`, and each call of the policy a child `chat`.

The Init carries the rollout's trace context to the agent server, whose spans are then children, too. The policy runs
inside of its span: a model's instrumented client continues the trace.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry.trace import Span, SpanKind, set_span_in_context, use_span

from osmosis_grpc.observability import genai
from osmosis_grpc.observability.tracing import end, fail, trace_context, tracer
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, RolloutOutcome, RolloutRequest, TraceContext


class TrainerSpans:
    """The open spans of one trainer's rollouts.

    With `content`, the spans of chats have their messages. The spans of rollouts are children of the caller's span.
    """

    def __init__(self, *, content: bool = False) -> None:
        self._tracer = tracer()
        self._content = content
        self._open: dict[str, Span] = {}

    def begin(self, request: RolloutRequest, done: "asyncio.Future[RolloutOutcome]") -> TraceContext | None:
        """Begin the span of a rollout, which ends with `done`. Returns the trace context for its Init."""
        group = request.group.id if request.group is not None else ""
        name, attributes = genai.invoke_agent(request.agent_loop, request.rollout_id, request.attempt, group)
        span = self._tracer.start_span(name, None, SpanKind.CLIENT, attributes)
        self._open[request.rollout_id] = span
        done.add_done_callback(partial(self._ended, request.rollout_id, span))
        return trace_context(span)

    def _ended(self, rollout_id: str, span: Span, done: "asyncio.Future[RolloutOutcome]") -> None:
        if self._open.get(rollout_id) is span:
            del self._open[rollout_id]
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            fail(span, type(error).__name__)
            end(span, {})
            return
        outcome = done.result()
        if outcome.failure is not None:
            fail(span, str(outcome.failure.reason), outcome.failure.message if self._content else "")
        end(span, genai.ended(outcome) | {genai.ATTEMPT: outcome.attempt})

    @contextmanager
    def chat(self, request: ChatRequest) -> Iterator[Span]:
        """Begin the span of a policy call, and make it the current one for the block. answered() ends it."""
        name, attributes = genai.chat(
            request.rollout_id, request.attempt, request.sample, request.chat_number, request.params, request.policy
        )
        rollout = self._open.get(request.rollout_id)
        parent = set_span_in_context(rollout) if rollout is not None else None
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes)
        if self._content:
            span.set_attribute(genai.INPUT_MESSAGES, genai.content(request.messages))
        with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield span

    def answered(self, span: Span, reply: object) -> None:
        """End the span of a policy call with its reply, or with its exception."""
        if isinstance(reply, ChatResponse):
            attributes = genai.replied(reply)
            if self._content:
                attributes[genai.OUTPUT_MESSAGES] = genai.content([reply.message])
            end(span, attributes)
        else:
            fail(span, type(reply).__name__)
            end(span, {})
