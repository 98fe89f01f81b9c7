"""create_app: an application that a real HTTP server runs."""

import asyncio

import httpx
import pytest
import uvicorn

from osmosis_grpc.rollout import RolloutSettings, create_app
from osmosis_grpc.testing.calculator import CalculatorAgent


@pytest.fixture
async def started(tmp_path):
    called = []

    async def on_startup():
        called.append("startup")

    async def on_shutdown():
        called.append("shutdown")

    app = create_app(
        CalculatorAgent(), max_concurrent=7, record_ttl_seconds=120.0, settings=RolloutSettings(),
        debug_dir=str(tmp_path), on_startup=on_startup, on_shutdown=on_shutdown,
    )  # fmt: skip
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield app, f"http://127.0.0.1:{port}", called
    server.should_exit = True
    await task
    assert called == ["startup", "shutdown"]


async def test_health_over_a_socket(started):
    app, url, called = started
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/health")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "healthy", "agent_loop": "calculator", "active_rollouts": 0, "completed_rollouts": 0
    }  # fmt: skip
    assert called == ["startup"]
    assert app.state.engine.config.max_concurrent == 7
    assert app.state.engine.config.record_ttl == 120.0
