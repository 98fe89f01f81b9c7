"""Metrics and traces. Metrics: plain Python objects count values, and a scrape reads them.

metric_families.py has families, histograms and the metrics of every process. rpc_metrics.py counts RPCs according to
gRFC A66. server_metrics.py has the metrics of an agent server, and computes the metrics of rollouts from the engine's
events. exposition.py writes the page for Prometheus, also of several workers.

Traces are spans of OpenTelemetry, and off by default. Only spans.py imports OpenTelemetry, and nothing imports spans.py
unless traces are on. genai.py has the names.
"""

from osmosis_grpc.observability.metric_families import Family, Histogram, Reading, Source
from osmosis_grpc.observability.rpc_metrics import Calls

__all__ = ["Calls", "Family", "Histogram", "Reading", "Source"]
