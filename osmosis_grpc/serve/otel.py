"""Implements `serve --otel`: sets a tracer provider with the exporter that OpenTelemetry's variables select.

If the process already has a tracer provider, for example under `opentelemetry-instrument`, it keeps that one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.settings.process_environment import has_otel_name, otel_exporter

EXPORTERS = "opentelemetry_traces_exporter"
"""The group of entry points in which packages offer exporters."""


@contextmanager
def tracing() -> Iterator[None]:
    """Set the tracer provider of this process, and send the last spans at the end.

    Raises MissingExtraError without the SDK, and ValueError if the exporter is unknown or cannot be made.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise MissingExtraError("--otel", "otel") from None
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        yield
        return
    named = {} if has_otel_name() else {SERVICE_NAME: "osmosis-grpc"}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    name = otel_exporter()
    if name != "none":
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _exporter(name: str) -> Any:
    found = {point.name: point for point in entry_points(group=EXPORTERS)}
    if name not in found:
        package = "opentelemetry-exporter-otlp" if name.startswith("otlp") else "its package"
        have = ", ".join(sorted(found)) or "none"
        raise ValueError(
            f"the exporter {name} of OTEL_TRACES_EXPORTER is not installed: install {package}, or use one of {have}"
        )
    try:
        made: Callable[[], Any] = found[name].load()
        return made()
    except Exception as error:
        raise ValueError(f"the exporter {name} of OTEL_TRACES_EXPORTER cannot be made: {error}") from None
