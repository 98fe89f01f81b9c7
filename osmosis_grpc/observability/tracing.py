"""OpenTelemetry: the tracer, and W3C trace context. Imported only if traces are on; the extra `otel` installs it.

The spans go to the process's tracer provider. The application, or `serve --otel`, gives it an exporter.
"""

from typing import Any

from osmosis_grpc.observability.genai import ERROR_TYPE, SCOPE
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import TraceContext
from osmosis_grpc.protocol.types.outcome import clip

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    raise MissingExtraError("OpenTelemetry", "otel") from None

from osmosis_grpc import __version__

_W3C = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """Return our tracer of the process's tracer provider."""
    return trace.get_tracer(SCOPE, __version__)


def context_of(given: TraceContext | None) -> Context:
    """Return the context of a trace context; an empty one, which begins a new trace, for None or a malformed one."""
    if given is None:
        return Context()
    return _W3C.extract({"traceparent": given.traceparent, "tracestate": given.tracestate}, Context())


def trace_context(span: trace.Span) -> TraceContext | None:
    """Return the trace context of a span; None without a tracer provider."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    parent = carrier.get("traceparent")
    return TraceContext(parent, carrier.get("tracestate", "")) if parent else None


def nanoseconds(seconds: float) -> int:
    """Return a time of OpenTelemetry: nanoseconds since 1970."""
    return int(seconds * 1e9)


def fail(span: trace.Span, kind: str, text: str = "") -> None:
    """Mark a span as failed. `kind` is the type of the error."""
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR, clip(text) or None))


def end(span: trace.Span, attributes: dict[str, Any], at: float | None = None) -> None:
    """End a span with attributes, at a time in Unix seconds, or now."""
    span.set_attributes(attributes)
    span.end(None if at is None else nanoseconds(at))
