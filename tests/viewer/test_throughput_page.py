"""The page of the throughput: its values, the same ones as those of a server's metrics, and the bound of a series."""

import pytest

from osmosis_grpc.protocol.types import RolloutInfo, RolloutState
from osmosis_grpc.protocol.types.rollout_info import Activity
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.viewer.calls import Calls, ToolTime
from osmosis_grpc.viewer.throughput import MOST_POINTS, Spread, throughput
from tests.observability.scrape import scrape
from tests.viewer.conftest import FEW_TURNS, MARKUP, TURNS, browsing


def row(number, accepted, started, ended, tokens=0):
    return RolloutInfo(
        rollout_id=f"r{number}",
        attempt=1,
        agent_loop="walker",
        state=RolloutState.COMPLETED,
        activity=Activity("ended", ended),
        accept_time=accepted,
        start_time=started,
        end_time=ended,
        response_tokens=tokens,
    )


async def test_the_values_are_those_of_a_scrape(following):
    server, client = following
    page = scrape(server.metrics)
    found = (await client.get("/throughput.json")).json()
    assert found["ended"] == len(TURNS)
    assert found["capacity"]["running"] == page.value("osmosis_rollouts_running") == 0
    assert found["capacity"]["queued"] == page.value("osmosis_queue_length") == 0
    spreads = {(each["kind"], each["name"]): each for each in found["spreads"]}
    model, tools, all_of = (spreads["model", "traveller"], spreads["tool", "weather"], spreads["rollout", "traveller"])
    assert model["count"] == page.value("osmosis_llm_call_duration_seconds_count") == sum(FEW_TURNS.values())
    assert model["total"] == pytest.approx(page.value("osmosis_llm_call_duration_seconds_sum"))
    for name, kind in (("count", "_count"), ("total", "_sum")):
        in_scrape = page.value(f"osmosis_tool_call_duration_seconds{kind}", tool="weather")
        assert tools[name] == pytest.approx(in_scrape)
    assert all_of["count"] == page.value("osmosis_rollout_duration_seconds_count", agent="traveller")
    assert all_of["total"] == pytest.approx(
        page.value("osmosis_rollout_duration_seconds_sum", agent="traveller"), abs=0.05
    )
    tokens = sum(point["tokens"] for point in found["points"]) * found["step"]
    assert tokens == pytest.approx(page.value("osmosis_tokens_total", kind="response"))


async def test_the_page_has_charts_and_a_table_of_the_same_values(folder):
    async with browsing(FolderSource(folder)) as client:
        text = (await client.get("/throughput")).text
        found = (await client.get("/throughput.json")).json()
        assert text.count('<th scope="row" data-value=') == len(found["points"]) > 0
        assert "model call" in text
        assert "weather" in text
        assert MARKUP not in text
        none = (await client.get("/throughput?agent=nobody")).text
        assert "No rollout matches." in none
        wrong = await client.get("/throughput?state=finished")
        assert wrong.status_code == 400
        assert "is not a state" in wrong.text


async def test_an_open_page_follows_a_server(following):
    _, client = following
    async with client.stream("GET", "/throughput/stream?agent=traveller") as stream:
        names = set()
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                names.add(line.removeprefix("event: "))
            if "throughput" in names:
                break


def test_a_day_is_decimated_and_keeps_its_sums():
    rows = [row(number, 10.0 * number, 10.0 * number + 2, 10.0 * number + 7, tokens=5) for number in range(8640)]
    found = throughput(rows, {}, 86_400.0)
    assert MOST_POINTS / 2 < len(found.points) <= MOST_POINTS <= 2_000
    assert sum(point.per_minute for point in found.points) * found.step / 60 == pytest.approx(8640)
    assert sum(point.tokens for point in found.points) * found.step == pytest.approx(5 * 8640)
    assert all(point.running == pytest.approx(0.5, abs=0.02) for point in found.points[1:-1])
    assert all(point.queued == pytest.approx(0.2, abs=0.02) for point in found.points[1:-1])
    assert len(throughput(rows, {}, 86_400.0 * 5000).points) <= MOST_POINTS


def test_percentiles_are_times_that_occurred():
    spread = Spread.of("tool", "add", [float(number) for number in range(100, 0, -1)])
    assert (spread.p50, spread.p95, spread.p99, spread.most) == (50, 95, 99, 100)
    one = Spread.of("tool", "add", [3.0])
    assert (one.p50, one.p99) == (3, 3)


def test_unfinished_rollouts_count_until_now():
    waiting = row(1, 0.0, None, None)
    found = throughput(
        [waiting, row(2, 0.0, 5.0, None)], {("r2", 1): Calls((0.5,), (ToolTime("add", 0.25),), 7, 2)}, 10.0
    )
    total = [sum(getattr(point, name) for point in found.points) * found.step for name in ("running", "queued")]
    assert total == [pytest.approx(5), pytest.approx(15)]
    assert found.retries == 2
    assert throughput([], {}, 10.0).points == ()
