"""Metrics: values that are counted in plain Python and read at a scrape.

values.py has families and histograms; calls.py the RPC metrics of gRFC A66; rollouts.py a sink of the engine;
process.py what every process has; server.py all of an agent server; exposition.py the page for Prometheus.
"""

from osmosis_grpc.observability.calls import Calls
from osmosis_grpc.observability.values import Family, Histogram, Reading, Source

__all__ = ["Calls", "Family", "Histogram", "Reading", "Source"]
