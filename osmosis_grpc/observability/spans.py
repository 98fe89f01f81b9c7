"""The OpenTelemetry spans of servers and trainers. Imported only if traces are on; needs the extra `otel`.

Spans go to the process's tracer provider, whose exporter the application or `serve --otel` sets. A rollout is one
trace. Its root is the trainer's span `invoke_agent`, with a child `chat` for each policy call. The Init carries the
trace context to the agent server, whose own span of the rollout, with its chats and tools, is another child.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from osmosis_grpc import __version__
from osmosis_grpc.engine import Engine
from osmosis_grpc.observability import genai
from osmosis_grpc.observability.genai import ERROR_TYPE, SCOPE
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    InitRequest,
    RolloutInfo,
    RolloutOutcome,
    RolloutRequest,
    TraceContext,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.types.outcome import clip

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context, use_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    raise MissingExtraError("OpenTelemetry", "otel") from None


_W3C = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """Return the package's tracer from the process's tracer provider."""
    return trace.get_tracer(SCOPE, __version__)


def context_of(given: TraceContext | None) -> Context:
    """Return the OpenTelemetry context of a trace context. Begin a new trace if it is None or malformed."""
    if given is None:
        return Context()
    return _W3C.extract({"traceparent": given.traceparent, "tracestate": given.tracestate}, Context())


def trace_context(span: trace.Span) -> TraceContext | None:
    """Return the trace context of a span, or None if there is no tracer provider."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    parent = carrier.get("traceparent")
    return TraceContext(parent, carrier.get("tracestate", "")) if parent else None


def nanoseconds(seconds: float) -> int:
    """Return a Unix time as OpenTelemetry needs it, in nanoseconds."""
    return int(seconds * 1e9)


def fail(span: trace.Span, kind: str, text: str = "") -> None:
    """Mark a span as failed. `kind` is the type of the error."""
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR, clip(text) or None))


def end(span: trace.Span, attributes: dict[str, Any], at: float | None = None) -> None:
    """End a span with attributes. `at` is the time in Unix seconds; by default, now."""
    span.set_attributes(attributes)
    span.end(None if at is None else nanoseconds(at))


class TrainerSpans:
    """The open spans of one trainer's rollouts.

    With `content`, the spans of chats contain the messages. The span of a rollout is a child of the caller's span.
    """

    def __init__(self, *, content: bool = False) -> None:
        self._tracer = tracer()
        self._content = content
        self._open: dict[str, Span] = {}

    def begin(self, request: RolloutRequest, done: "asyncio.Future[RolloutOutcome]") -> TraceContext | None:
        """Begin the span of a rollout, which ends when `done` is done. Return the trace context for its Init."""
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
        """Begin the span of a policy call, and make it the current span in the block. answered() ends it."""
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


_Key = tuple[str, int]


class _Rollout:
    """The open spans of one attempt."""

    __slots__ = ("chats", "span", "tools")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.chats: dict[tuple[str, int], Span] = {}
        self.tools: dict[str, Span] = {}


class RolloutSpans:
    """The spans of one engine's rollouts. Adds itself to the engine's sinks.

    With `content`, the spans have the messages of chats, and the arguments and results of tools.
    """

    def __init__(self, engine: Engine, *, content: bool = False) -> None:
        self._tracer: Tracer = tracer()
        self._journal = engine.journal
        self._agents = engine.context.runnables
        self._content = content
        self._open: dict[_Key, _Rollout] = {}
        for kind, sink in self._sinks().items():
            engine.log.add_sink(sink, kind)
        engine.end_sinks.append(self._ended)  # also called while the journal cannot be written

    def _sinks(self) -> dict[type, Callable[[Any], None]]:
        return {
            events.Accepted: self._accepted,
            events.Started: self._started,
            events.Resumed: self._resumed,
            events.ChatRequested: self._asked,
            events.ChatAnswered: self._answered,
            events.ChatFailed: self._chat_failed,
            events.ToolCalled: self._called,
            events.ToolReturned: self._returned,
        }

    def _begin(self, event: TrajectoryEvent, init: InitRequest, *, resumed: bool = False) -> _Rollout:
        request = init.request
        group = request.group.id if request.group is not None else ""
        agent = request.agent_loop or next(iter(self._agents))  # a request may leave out the name of the only agent
        name, attributes = genai.invoke_agent(agent, event.rollout_id, event.attempt, group)
        if resumed:
            attributes[genai.RESUMED] = True
        span = self._tracer.start_span(
            name, context_of(init.trace), SpanKind.SERVER, attributes, start_time=nanoseconds(event.time)
        )
        found = self._open[event.rollout_id, event.attempt] = _Rollout(span)
        return found

    def _accepted(self, event: Any, /) -> None:
        self._begin(event, event.kind.init)

    def _started(self, event: Any, /) -> None:
        found = self._continued(event)
        if found is not None:
            found.span.add_event("started", timestamp=nanoseconds(event.time))

    def _resumed(self, event: Any, /) -> None:
        self._continued(event)

    def _continued(self, event: TrajectoryEvent) -> _Rollout | None:
        """Return the open spans of a rollout. If an earlier process began the rollout, begin a new span here.

        The span of the earlier process was never ended.
        """
        found = self._open.get((event.rollout_id, event.attempt))
        if found is None:
            for first in self._journal.events(event.rollout_id, event.attempt, 0, 1):
                if isinstance(first.kind, events.Accepted):
                    found = self._begin(event, first.kind.init, resumed=True)
        return found

    def _child(
        self, event: TrajectoryEvent, named: tuple[str, genai.Attributes], kind: SpanKind, before: float = 0.0
    ) -> Span | None:
        """Begin a child of the rollout's span, `before` seconds before the event. Return None after the end."""
        found = self._open.get((event.rollout_id, event.attempt))
        if found is None:
            return None
        name, attributes = named
        begun = nanoseconds(event.time - before)
        return self._tracer.start_span(name, set_span_in_context(found.span), kind, attributes, start_time=begun)

    def _asked(self, event: Any, /) -> None:
        asked: events.ChatRequested = event.kind
        named = genai.chat(event.rollout_id, event.attempt, asked.sample, asked.chat_number, asked.params, asked.policy)
        span = self._child(event, named, SpanKind.CLIENT)
        if span is None:
            return
        if self._content:
            span.set_attribute(genai.INPUT_MESSAGES, genai.content(asked.messages))
        self._open[event.rollout_id, event.attempt].chats[asked.sample, asked.chat_number] = span

    def _answered(self, event: Any, /) -> None:
        answered: events.ChatAnswered = event.kind
        span = self._take_chat(event)
        if span is None:
            return
        attributes = genai.replied(answered.response)
        if answered.recorded_event or answered.forked:
            attributes[genai.RECORDED] = True
        if self._content:
            attributes[genai.OUTPUT_MESSAGES] = genai.content([answered.response.message])
        end(span, attributes, event.time)

    def _chat_failed(self, event: Any, /) -> None:
        if event.kind.will_retry:
            found = self._open.get((event.rollout_id, event.attempt))
            trying = found.chats.get((event.kind.sample, event.kind.chat_number)) if found is not None else None
            if trying is not None:
                trying.add_event("retry", {genai.ERROR_TYPE: str(event.kind.code)}, nanoseconds(event.time))
            return
        span = self._take_chat(event)
        if span is not None:
            fail(span, str(event.kind.code), event.kind.message)
            end(span, {}, event.time)

    def _take_chat(self, event: Any) -> Span | None:
        found = self._open.get((event.rollout_id, event.attempt))
        return found.chats.pop((event.kind.sample, event.kind.chat_number), None) if found is not None else None

    def _called(self, event: Any, /) -> None:
        call = event.kind.call
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id = str(call.get("id") or "")
        named = genai.execute_tool(event.rollout_id, event.attempt, str(function.get("name") or ""), call_id)
        span = self._child(event, named, SpanKind.INTERNAL)
        if span is None:
            return
        if self._content:
            span.set_attribute(genai.TOOL_ARGUMENTS, str(function.get("arguments") or ""))
        self._open[event.rollout_id, event.attempt].tools[call_id] = span

    def _returned(self, event: Any, /) -> None:
        returned: events.ToolReturned = event.kind
        found = self._open.get((event.rollout_id, event.attempt))
        span = found.tools.pop(returned.tool_call_id, None) if found is not None else None
        if span is None:  # the agent ran the tool itself and recorded it afterwards
            named = genai.execute_tool(event.rollout_id, event.attempt, returned.name, returned.tool_call_id)
            span = self._child(event, named, SpanKind.INTERNAL, before=returned.latency)
        if span is None:
            return
        if returned.error:
            fail(span, "tool_error", returned.error if self._content else "")
        if self._content and returned.message is not None:
            span.set_attribute(genai.TOOL_RESULT, genai.content([returned.message]))
        end(span, {}, event.time)

    def _ended(self, rollout: RolloutInfo, /) -> None:
        found = self._open.pop((rollout.rollout_id, rollout.attempt), None)
        outcome = rollout.outcome
        if found is None or outcome is None:
            return
        for child in (*found.chats.values(), *found.tools.values()):
            fail(child, "unfinished", "the rollout has ended")
            end(child, {}, rollout.end_time)
        if outcome.failure is not None:
            fail(found.span, str(outcome.failure.reason), outcome.failure.message if self._content else "")
        end(found.span, genai.ended(outcome), rollout.end_time)
