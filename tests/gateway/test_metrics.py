"""GET /metrics: who may read it, in which format, and where."""

import sys

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from osmosis_gateway.app import create_app
from osmosis_gateway.http_server import serve_http, serve_metrics
from osmosis_gateway.routes import HttpAccess, add_metrics
from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.network.http.server import http_app
from osmosis_grpc.rollout import RolloutServerSettings, RolloutSettings
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.gateway.test_auth import TOKEN, showing
from tests.observability.scrape import OPENMETRICS, Page

METRICS = "/metrics"


async def test_rollouts_over_http_are_on_the_page(gateway, trainer):
    await gateway.init(trainer.body("r1"))
    await trainer.outcome("r1")
    answer = await gateway.client.get(METRICS)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    page = Page(answer.text)
    assert (
        page.value(
            "osmosis_rollouts_total", agent="calculator", status="COMPLETED", finish_reason="stop", error_category=""
        )
        == 1
    )
    assert page.value("osmosis_llm_call_duration_seconds_count") == 1
    assert page.value("process_resident_memory_bytes") > 1e6
    assert "r1" not in answer.text


async def test_openmetrics_where_it_is_asked_for(gateway):
    answer = await gateway.client.get(METRICS, headers={"accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert Page(answer.text, parse=openmetrics).series()


async def test_a_token_guards_it(start):
    closed = await start(token=TOKEN)
    assert (await closed.client.get(METRICS)).status_code == 401
    assert (await closed.client.get(METRICS, headers=showing("Bearer wrong"))).status_code == 401
    answer = await closed.client.get(METRICS, headers=showing(f"Bearer {TOKEN}"))
    assert answer.status_code == 200
    assert TOKEN not in answer.text


async def test_it_is_not_there_in_public_without_a_token(stack):
    server = await stack.enter_async_context(
        AgentServer([CalculatorAgent()], host="0.0.0.0", port=0, security=ServerSecurity(insecure=True))
    )
    http = await stack.enter_async_context(serve_http(server, host="0.0.0.0", port=0))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http.port}", trust_env=False) as client:
        answer = await client.get(METRICS)
        assert (answer.status_code, "no token" in answer.json()["detail"]) == (404, True)
        assert (await client.get("/health")).status_code == 200


async def test_no_page_of_a_browser_reads_it_by_another_name(gateway):
    assert (await gateway.client.get(METRICS, headers={"host": "evil.example"})).status_code == 421


async def test_every_application_has_it(stack):
    settings = RolloutSettings(server=RolloutServerSettings(token=TOKEN))
    app = create_app(CalculatorAgent(), settings=settings)
    await stack.enter_async_context(app.router.lifespan_context(app))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("127.0.0.1", 1)), base_url="http://x")
    await stack.enter_async_context(client)
    page = Page((await client.get(METRICS, headers=showing(TOKEN))).text)
    assert page.labels("osmosis_rollouts_in_flight", "agent") == {"calculator"}

    server = await stack.enter_async_context(AgentServer([CalculatorAgent()], port=0))
    http, _ = await stack.enter_async_context(serve_standalone(server.address, port=0, callback_port=0))
    async with httpx.AsyncClient(base_url=f"http://{http.address}", trust_env=False) as client:
        page = Page((await client.get(METRICS)).text)
    assert {"osmosis_build_info", "grpc_server_call_started", "osmosis_trainer_chats"} <= page.families.keys()


async def test_a_gateway_alone_counts_what_it_passes_on(stack, trainer):
    server = await stack.enter_async_context(AgentServer([CalculatorAgent()], port=0))
    http, _ = await stack.enter_async_context(serve_standalone(server.address, port=0, callback_port=0))
    async with httpx.AsyncClient(base_url=f"http://{http.address}", trust_env=False) as client:
        assert (await client.post("/v1/rollout/init", json=trainer.body("r1"))).status_code == 202
        await trainer.outcome("r1")
        while not (page := Page((await client.get(METRICS)).text)).value(
            "osmosis_trainer_rollouts_total", status="COMPLETED", evaluation="false"
        ):  # its trainer knows before it has counted
            pass
    assert page.value("osmosis_trainer_chats_total", result="answered") == 1
    chat = "osmosis.rollout.v1.TrainerService/Chat"
    assert page.value("grpc_server_call_started_total", grpc_method=chat) == 1


async def test_a_separate_port_is_on_loopback_and_needs_no_token(stack):
    security = ServerSecurity(TOKEN, insecure=True)
    server = await stack.enter_async_context(
        AgentServer([CalculatorAgent()], host="0.0.0.0", port=0, security=security)
    )
    http = await stack.enter_async_context(serve_metrics(server, host="0.0.0.0"))
    assert http.address.startswith("127.0.0.1:")
    async with httpx.AsyncClient(base_url=f"http://{http.address}", trust_env=False) as client:
        answer = await client.get(METRICS)
        assert Page(answer.text).labels("osmosis_rollouts_in_flight", "agent") == {"calculator"}
        assert (await client.get(METRICS, headers={"host": "evil.example"})).status_code == 421
        for path in ("/", "/health", "/openapi.json", "/v1/rollout/init"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post(METRICS)).status_code == 405
    assert TOKEN not in answer.text


async def test_without_the_library_the_answer_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "osmosis_grpc.observability.exposition", raising=False)

    class Nothing:
        def read(self):
            return iter(())

    app = http_app("test")
    app.state.metrics = Nothing()
    add_metrics(app, HttpAccess(max_metadata_bytes=0, loopback=True))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    answer = await client.get(METRICS)
    assert answer.status_code == 501
    assert answer.json()["detail"].startswith("metrics needs the extra 'server': pip install ")


@pytest.fixture(autouse=True)
def _exposition_is_restored():
    kept = sys.modules.get("osmosis_grpc.observability.exposition")
    yield
    if kept is not None:
        sys.modules["osmosis_grpc.observability.exposition"] = kept
