"""A page of metrics, read by the official parsers."""

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from osmosis_grpc.observability.exposition import render

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Page:
    """The samples of a page by name and labels."""

    def __init__(self, text: str, *, parse: Any = prometheus) -> None:
        self.text = text
        self.families = {family.name: family for family in parse(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """A sample; 0.0 when there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def series(self, prefix: str = "") -> set[Any]:
        """The series there are; process_ and python_ ones left out."""
        return {key for key in self.samples if key[0].startswith(prefix or ("osmosis_", "grpc_"))}

    def labels(self, name: str, label: str) -> set[str]:
        """The values that a label has in a family."""
        return {dict(labels)[label] for sample, labels in self.samples if sample.startswith(name)}


def scrape(source: Any) -> Page:
    """A source's page, in both formats; they have the same samples."""
    readings = list(source.read())
    text, kind = render(readings)
    assert kind.startswith("text/plain; version=0.0.4")
    open_text, open_kind = render(readings, OPENMETRICS)
    assert open_kind.startswith("application/openmetrics-text; version=1.0.0")
    page, open_page = Page(text.decode()), Page(open_text.decode(), parse=openmetrics)
    assert page.series() == open_page.series()
    return page
