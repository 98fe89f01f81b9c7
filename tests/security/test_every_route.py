"""Every HTTP route with every credential: the list is read from the application."""

import re

import httpx
import pytest

from osmosis_gateway.app import create_app
from osmosis_gateway.http_server import serve_http
from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.rollout import RolloutServerSettings, RolloutSettings
from osmosis_grpc.server import AgentServer, Credentials, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.security.conftest import RIGHT, SECOND, TOKEN, WRONG

TOKENS = [f"named={TOKEN}", SECOND]
SETTINGS = RolloutSettings(server=RolloutServerSettings(token="\n".join(TOKENS)))
ODD = (
    "/",
    "/nowhere",
    "/health/",
    "/health/x",
    "//health",
    "/HEALTH",
    "/v1/rollout/init/",
    "/health/../openapi.json",
    "/health%2F..%2Fopenapi.json",
    "/health;x",
    "/openapi.json?x=/health",
)


@pytest.fixture(params=["serve", "alone", "create_app"])
async def deployment(request, stack):
    """An application with tokens, and a client of it."""
    if request.param == "create_app":
        app = create_app(CalculatorAgent(), settings=SETTINGS)
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        return app, await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://x"))
    server = AgentServer([CalculatorAgent()], port=0, security=ServerSecurity(TOKENS))
    await stack.enter_async_context(server)
    if request.param == "alone":
        shown = {"security": ServerSecurity(TOKENS), "credentials": Credentials(token=SECOND)}
        http, _ = await stack.enter_async_context(serve_standalone(server.address, port=0, callback_port=0, **shown))
    else:
        http = await stack.enter_async_context(serve_http(server, port=0))
    client = httpx.AsyncClient(base_url=f"http://{http.address}", trust_env=False)
    return http.app, await stack.enter_async_context(client)


def showing(value):
    return {} if value is None else {"authorization": value}


def routes(app):
    return {(method, route.path) for route in app.routes for method in route.methods}


async def test_every_route_asks_everybody(deployment):
    app, client = deployment
    guarded = {"/v1/rollout/init", "/platform/health", "/openapi.json", "/metrics"}
    guarded |= {"/rollout", "/rollout/{rollout_id}/result", "/rollout/{rollout_id}/status", "/rollout/cancel", "/drain"}
    assert {path for _, path in routes(app)} == {"/health", *guarded}
    asked = [row for row in routes(app) if row[1] != "/health"] + [("GET", path) for path in ODD]
    answers = set()
    for method, path in asked:
        for name, shown in WRONG.items():
            answer = await client.request(method, path, headers=showing(shown))
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path, name)
            answers.add(answer.text)
        for name, shown in RIGHT.items():
            answer = await client.request(method, path, headers=showing(shown))
            assert answer.status_code != 401, (method, path, name)
    assert len(answers - {""}) == 1, "the same for everybody"


@pytest.mark.parametrize(("shown", "reason"), [(None, "it shows no token"), ("Bearer x", "its token is not accepted")])
async def test_a_refused_caller_is_a_line_in_the_log(deployment, caplog, shown, reason):
    _, client = deployment
    assert (await client.get("/openapi.json", headers=showing(shown))).status_code == 401
    assert (await client.get("/openapi.json", headers=showing(shown))).status_code == 401
    lines = [record.getMessage() for record in caplog.records if "refuses caller" in record.getMessage()]
    assert re.fullmatch(rf"the server refuses caller 127\.0\.0\.1:\d+ over HTTP: {reason}", lines[0])
    assert shown is None or shown not in caplog.text


async def test_health_is_open(deployment):
    _, client = deployment
    for shown in (*WRONG.values(), *RIGHT.values()):
        answer = await client.get("/health", headers=showing(shown))
        assert (answer.status_code, answer.json()["status"]) == (200, "healthy")


async def test_an_application_below_a_path_is_guarded_as_well(stack):
    from fastapi import FastAPI

    below = create_app(CalculatorAgent(), settings=SETTINGS)
    above = FastAPI()
    above.mount("/api", below)
    await stack.enter_async_context(below.router.lifespan_context(below))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(above), base_url="http://x")
    await stack.enter_async_context(client)
    assert (await client.get("/api/health")).status_code == 200
    assert (await client.get("/api/openapi.json")).status_code == 401
    assert (await client.get("/api/openapi.json", headers=showing(TOKEN))).status_code == 200
    assert (await client.get("/api/health/health")).status_code == 401
