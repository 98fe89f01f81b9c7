"""The spans of an agent server: a sink of the engine's events.

A rollout is the span `invoke_agent`, a child of the span that came with its Init. Its chats and tool calls are children
of it. Times are those of the events. An event is shown after its commit, so a span may be exported a little later.
"""

from collections.abc import Callable
from typing import Any

from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from osmosis_grpc.engine import Engine
from osmosis_grpc.observability import genai
from osmosis_grpc.observability.tracing import context_of, end, fail, nanoseconds, tracer
from osmosis_grpc.protocol.types import InitRequest, RolloutInfo, TrajectoryEvent, events

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
        engine.end_sinks.append(self._ended)  # it is called for each end, also while the journal cannot be written

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
        """Return the open spans of a rollout. For one of an earlier process, begin a span from its first event.

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
        """Begin a child of the rollout's span, `before` seconds before the event; None after the rollout's end."""
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
        if span is None:  # the agent ran the tool itself, and recorded it afterwards
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
