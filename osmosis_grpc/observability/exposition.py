"""Renders readings for Prometheus, and merges the pages of several workers.

Only this file imports prometheus_client, which the extra `server` installs.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, cast

from osmosis_grpc.observability.metric_families import Histogram, Reading, Source, Summary
from osmosis_grpc.protocol.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError:
    raise MissingExtraError("metrics", "server") from None


class PrometheusCollector(Collector):
    """A collector for the application's own registry: REGISTRY.register(PrometheusCollector(source))."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Return no families, because they are unknown before collect() reads the source."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all families. Any thread may call it."""
        return map(_metric, self._source.read())


class _Read(Collector):
    """A collector of given readings."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._readings)


def render(readings: Iterable[Reading], accept: str = "") -> tuple[bytes, str]:
    """Return the page /metrics and its content type. `accept` is the Accept header, which selects the format.

    The page also has the processor time, the memory and the file descriptors of this process.
    """
    registry = CollectorRegistry()
    registry.register(_Read(readings))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _metric(reading: Reading) -> Metric:
    family, values = reading
    metric: Any = _MAKE[family.kind](family.name, family.help, labels=family.labels)
    for labels, value in values:
        if isinstance(value, Histogram):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            metric.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.total)
        elif isinstance(value, Summary):
            metric.add_metric(labels, value.count, value.total)
        else:
            metric.add_metric(labels, value)
    return cast("Metric", metric)


_MAKE: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


try:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample
except ModuleNotFoundError:
    raise MissingExtraError("metrics", "server") from None

UP = "osmosis_worker_up"


def merged(pages: Mapping[int, str], away: Iterable[int], accept: str = "") -> tuple[bytes, str]:
    """Merge the pages of workers. Return the page and its content type. `away` are the workers that did not answer."""
    registry = CollectorRegistry()
    registry.register(_Merged(pages, away))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Merged(Collector):
    def __init__(self, pages: Mapping[int, str], away: Iterable[int]) -> None:
        self._pages = pages
        self._away = list(away)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for worker, page in sorted(self._pages.items()):
            for family in text_string_to_metric_families(page):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known.samples += [_labelled(sample, worker) for sample in family.samples]
        up = Metric(UP, "1 for a worker that has answered the scrape, else 0.", "gauge")
        for worker in sorted((*self._pages, *self._away)):
            up.add_sample(UP, {"worker": str(worker)}, float(worker in self._pages))
        yield from families.values()
        yield up


def _labelled(sample: Sample, worker: int) -> Sample:
    return sample._replace(labels={**sample.labels, "worker": str(worker)})
