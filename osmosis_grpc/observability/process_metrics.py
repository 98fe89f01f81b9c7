"""The metrics of every process: the version, the failures of background jobs, and the dropped log lines."""

import logging
from collections.abc import Iterator, Mapping

from osmosis_grpc import __version__, supervise
from osmosis_grpc.observability.metric_families import Family, Reading, by_name, single

BUILD = Family("osmosis_build_info", "gauge", "1. The label names the version of osmosis_grpc.", ("version",))
FAILURES = Family(
    "osmosis_supervised_failures_total", "counter", "Failures of background jobs, by the job's name.", ("job",)
)
LINES = Family("osmosis_log_lines_dropped_total", "counter", "Log lines dropped: stderr takes them too slowly.")


def failures(counts: Mapping[str, int]) -> Reading:
    """Return the failures of all jobs. `counts` are those of a supervisor's jobs. A job without failures has 0."""
    alone = supervise.failures
    names = [*supervise.declared(), *counts.keys() - supervise.declared().keys()]
    return by_name(FAILURES, {name: float(counts.get(name, 0) + alone[name]) for name in names})


class ProcessMetrics:
    """The metrics of every process of this project."""

    def read(self) -> Iterator[Reading]:
        """See Source."""
        yield BUILD, [((__version__,), 1.0)]
        yield single(LINES, sum(getattr(handler, "dropped", 0) for handler in logging.getLogger().handlers))
