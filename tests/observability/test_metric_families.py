"""Histograms and bounded names."""

import itertools

import pytest

from osmosis_grpc.observability.exposition import PrometheusCollector
from osmosis_grpc.observability.metric_families import OTHER, Family, Histogram, Names, Summary, single
from osmosis_grpc.observability.rpc_metrics import BYTES, SECONDS
from tests.observability.scrape import scrape


class One:
    """A source of one family."""

    def __init__(self, kind, value):
        self.family, self.value = Family("one_total" if kind == "counter" else "one", kind, "One."), value

    def read(self):
        yield single(self.family, self.value)


def test_a_value_on_a_bound_belongs_to_its_bucket():
    histogram = Histogram((0, 1, 10))
    for value in (-1, 0, 0.5, 1, 1.5, 10, 11, 1e300):
        histogram.observe(value)
    page = scrape(One("histogram", histogram))
    assert [page.value("one_bucket", le=le) for le in ("0.0", "1.0", "10.0", "+Inf")] == [2, 4, 6, 8]
    assert page.value("one_count") == 8
    assert page.value("one_sum") == pytest.approx(1e300)


def test_negative_buckets_have_no_sum():
    """OpenMetrics forbids it: such a sum does not only grow."""
    histogram = Histogram((-1, 1))
    histogram.observe(-5)
    page = scrape(One("histogram", histogram))
    assert [page.value("one_bucket", le=le) for le in ("-1.0", "1.0", "+Inf")] == [1, 1, 1]
    assert "one_sum" not in page.text


def test_other_kinds():
    assert scrape(One("counter", 3)).value("one_total") == 3
    assert scrape(One("gauge", 2.5)).value("one") == 2.5
    page = scrape(One("summary", Summary(4, 0.5)))
    assert (page.value("one_count"), page.value("one_sum")) == (4, 0.5)


def test_a_collector_reads_its_source_at_each_scrape():
    source = One("gauge", 1.0)
    collector = PrometheusCollector(source)
    assert [metric.samples[0].value for metric in collector.collect()] == [1.0]
    source.value = 2.0
    assert [metric.samples[0].value for metric in collector.collect()] == [2.0]


def test_names_are_bounded_printable_and_short():
    names = Names(3)
    for name in ("a", "", "b\n", "x" * 65, None, {}, 7, "b", "a", "c", "d"):
        names.add(name)
    assert [names.label(name) for name in ("a", "b", "c", "d", "", "b\n", "x" * 65)] == ["a", "b", "c", *[OTHER] * 4]


def test_the_buckets_are_those_of_a66():
    assert len(SECONDS) == 41
    assert SECONDS[:5] == (0, 0.00001, 0.00005, 0.0001, 0.0003)
    assert SECONDS[-5:] == (5, 10, 20, 50, 100)
    assert BYTES == (
        0,
        1024,
        2048,
        4096,
        16384,
        65536,
        262144,
        1048576,
        4194304,
        16777216,
        67108864,
        268435456,
        1073741824,
        4294967296,
    )
    for bounds in (SECONDS, BYTES):
        assert all(one < other for one, other in itertools.pairwise(bounds))
