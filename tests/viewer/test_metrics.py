"""The metrics of a server on the pages: event-loop lag, latencies, status codes, and the attached trainers."""

import re
from contextlib import asynccontextmanager

import pytest

from osmosis_gateway.http_server import serve_metrics
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.viewer import metrics, reads
from osmosis_grpc.viewer.metrics import Metrics, MetricsError, metrics_of, scraped
from tests.observability.scrape import scrape
from tests.viewer.conftest import FEW_TURNS, TURNS, Traveller, browsing, serving, source_of
from tests.waiting import until

PAGE = """
# TYPE osmosis_event_loop_lag_seconds histogram
osmosis_event_loop_lag_seconds_bucket{le="0.01"} 50.0
osmosis_event_loop_lag_seconds_bucket{le="0.1"} 90.0
osmosis_event_loop_lag_seconds_bucket{le="1.0"} 100.0
osmosis_event_loop_lag_seconds_bucket{le="+Inf"} 100.0
osmosis_event_loop_lag_seconds_count 100.0
osmosis_event_loop_lag_seconds_sum 4.0
# TYPE grpc_server_call_started counter
grpc_server_call_started_total{grpc_method="a.B/Init"} 7.0
# TYPE grpc_server_call_duration_seconds histogram
grpc_server_call_duration_seconds_bucket{grpc_method="a.B/Init",grpc_status="OK",le="+Inf"} 4.0
grpc_server_call_duration_seconds_count{grpc_method="a.B/Init",grpc_status="OK"} 4.0
grpc_server_call_duration_seconds_sum{grpc_method="a.B/Init",grpc_status="OK"} 1.0
grpc_server_call_duration_seconds_bucket{grpc_method="a.B/Init",grpc_status="NOT_FOUND",le="+Inf"} 2.0
grpc_server_call_duration_seconds_count{grpc_method="a.B/Init",grpc_status="NOT_FOUND"} 2.0
grpc_server_call_duration_seconds_sum{grpc_method="a.B/Init",grpc_status="NOT_FOUND"} 1.0
"""


async def numbers_of(text):
    async def read():
        return text

    return await Metrics("here", read).numbers()


async def test_percentiles_are_interpolated_within_their_buckets():
    lag = (await numbers_of(PAGE)).lag
    assert lag.count == 100
    assert lag.mean == pytest.approx(0.04)
    assert lag.p50 == pytest.approx(0.01)
    assert lag.p95 == pytest.approx(0.55)
    assert lag.most == 1.0
    assert (await numbers_of("")).lag is None


async def test_the_lag_has_a_point_for_each_two_reads_and_a_restart_of_the_server_has_none(monkeypatch):
    monkeypatch.setattr(metrics, "EVERY", 0.0)
    pages = iter([(0, 0), (10, 0), (10, 10), (0, 0), (0, 10)])

    async def read():
        fast, slow = next(pages)
        name = f"{metrics.LAG}_bucket"
        counts = {"0.01": fast, "0.1": fast + slow, "+Inf": fast + slow}
        buckets = "\n".join(f'{name}{{le="{bound}"}} {count}' for bound, count in counts.items())
        return f"# TYPE {metrics.LAG} histogram\n{buckets}\n{metrics.LAG}_count {fast + slow}\n{metrics.LAG}_sum 1.0\n"

    server = Metrics("here", read)
    lags = [(await server.numbers()).lags for _ in range(5)]
    assert [len(each) for each in lags] == [0, 1, 2, 2, 3]
    assert [each.p50 for each in lags[-1]] == pytest.approx([0.005, 0.055, 0.055])


async def test_status_codes_are_counted_by_method_and_open_calls_are_the_rest():
    found = await numbers_of(PAGE)
    (calls,) = found.calls
    assert (calls.open, calls.codes) == (1, (("NOT_FOUND", 2), ("OK", 4)))
    assert found.codes == (("OK", 4, 0), ("NOT_FOUND", 2, 0))


async def test_the_pages_have_the_numbers_of_the_scraped_page(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "EVERY", 0.0)
    monkeypatch.setattr(reads, "LASTS", 0.0)
    monkeypatch.setattr(reads, "SHARE", 1e9)
    async with (
        serving(tmp_path, FEW_TURNS) as server,
        serve_metrics(server) as http,
        browsing(source_of(server), metrics=scraped(str(http.address))) as client,
    ):
        found = (await client.get("/throughput.json")).json()["metrics"]
        page = scrape(server.metrics)
        assert (
            found["chats"]["count"] == page.value("osmosis_llm_call_duration_seconds_count") == sum(FEW_TURNS.values())
        )
        assert dict(found["tools"])["weather"]["count"] == page.value(
            "osmosis_tool_call_duration_seconds_count", tool="weather"
        )
        assert found["ended"] == len(TURNS)
        assert found["attempts"] == page.value("osmosis_callback_attempts_total")
        text = (await client.get("/throughput")).text
        assert "event-loop lag p50, p99" in text

        async def has_chart():
            return 'data-table="lags"' in (await client.get("/throughput")).text

        await until(has_chart)
        text = (await client.get("/server")).text
        assert "Calls that the server answers" in text
        assert '<th scope="row">Init</th>' in text


@asynccontextmanager
async def attached_by(rpc, folder):
    """A server and a trainer. The trainer opens the stream with Attach, or the server opens it with Accept."""
    if rpc == "Accept":
        async with (
            Trainer([], EchoPolicy(), listen="127.0.0.1:0") as trainer,
            AgentServer([Traveller()], port=0, state_dir=folder, connect=[trainer.address]) as server,
        ):
            yield server, trainer
        return
    async with (
        AgentServer([Traveller()], port=0, state_dir=folder) as server,
        Trainer([server.address], EchoPolicy()) as trainer,
    ):
        yield server, trainer


@pytest.mark.parametrize("rpc", ["Attach", "Accept"])
async def test_a_server_in_this_process_names_its_attached_trainers_with_their_bytes(tmp_path, rpc):
    async with (
        attached_by(rpc, tmp_path) as (server, trainer),
        browsing(FolderSource(tmp_path), metrics=metrics_of(server)) as client,
    ):
        await trainer.rollout(rollout_id="one", messages=[{"role": "user", "content": "How is it?"}])
        text = (await client.get("/server")).text
        assert "Connected trainers" in text
        assert text.count(f"<td>{rpc}</td>") == 1
        (attached,) = server.attachments.attached
        assert attached.address in text
        row = text[text.index(attached.address) :].split("</tr>")[0]
        assert len(re.findall(r">[1-9][\d.]* K?B<", row)) == 2
        assert min(attached.traffic) > 100


async def test_metrics_that_cannot_be_read_are_a_line_and_the_page_stays(following):
    server, _ = following
    async with browsing(source_of(server), metrics=scraped(server.address)) as client:
        for path in ("/server", "/throughput"):
            page = await client.get(path)
            assert page.status_code == 200
            assert "cannot be read" in page.text


async def test_a_page_without_metrics_and_a_wrong_address_say_so():
    with pytest.raises(MetricsError, match="has no metrics"):
        await numbers_of("<html>{")
    for address in ("ftp://here/metrics", "http:///metrics"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            scraped(address)
