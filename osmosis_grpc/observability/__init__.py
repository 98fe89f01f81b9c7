"""Metrics and traces.

Metrics are counted in plain Python objects, which a scrape reads. metric_families.py has families, histograms and the
metrics of every process; rpc_metrics.py counts RPCs as gRFC A66 says; server_metrics.py has the metrics of an agent
server, with those of rollouts computed from the engine's events; exposition.py renders the page for Prometheus.

Traces are OpenTelemetry spans, off by default. Only spans.py imports OpenTelemetry, and it is imported only when traces
are on. genai.py has the names of spans and attributes.
"""

from osmosis_grpc.observability.metric_families import Family, Histogram, Reading, Source
from osmosis_grpc.observability.rpc_metrics import Calls

__all__ = ["Calls", "Family", "Histogram", "Reading", "Source"]
