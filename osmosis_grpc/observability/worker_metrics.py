"""Merges the metrics pages of several workers into one page. Each sample gets the label `worker`."""

from collections.abc import Iterable, Iterator, Mapping

from osmosis_grpc.protocol.errors import MissingExtraError

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
    """Return one page for the pages of workers, and its content type. `away` are the workers that did not answer."""
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
