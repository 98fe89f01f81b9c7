"""Metrics and traces.

Metrics are counted in plain Python objects, which a scrape reads. metric_families.py has families, histograms, and the
metrics that every process has. rpc_metrics.py counts RPCs according to gRFC A66. server_metrics.py has the metrics of
an agent server; it computes the metrics of rollouts from the engine's events. exposition.py renders the page for
Prometheus.

Traces are OpenTelemetry spans, off by default. Only spans.py imports OpenTelemetry, and it is imported only when traces
are on. genai.py has the names of spans and attributes.
"""

from osmosis_grpc.observability.metric_families import Family, Histogram, Reading, Source
from osmosis_grpc.observability.rpc_metrics import Calls

__all__ = ["Calls", "Family", "Histogram", "Reading", "Source"]
