"""create_app: an application that a real HTTP server runs."""

import asyncio
import contextlib
import signal
import subprocess
import sys

import httpx
import pytest
import uvicorn

from osmosis_gateway import app as app_module
from osmosis_grpc.rollout import (
    AgentLoopValidationError,
    RolloutAgentLoop,
    RolloutSettings,
    create_app,
    serve_agent_loop,
)
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.gateway.legacy import LegacyTrainer
from tests.ports import quiet_port
from tests.waiting import until, wait_until


@pytest.fixture
async def started(tmp_path):
    called = []

    async def on_startup():
        called.append("startup")

    async def on_shutdown():
        called.append("shutdown")

    app = create_app(
        CalculatorAgent(),
        max_concurrent=7,
        record_ttl_seconds=120.0,
        settings=RolloutSettings(),
        debug_dir=str(tmp_path),
        on_startup=on_startup,
        on_shutdown=on_shutdown,
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
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
    health = answer.json()
    assert health.pop("instance_id") != health.pop("process_id") != ""
    assert health == {
        "status": "healthy",
        "agent_loop": "calculator",
        "active_rollouts": 0,
        "completed_rollouts": 0,
        "undelivered": 0,
        "concurrency": {"max_concurrent": 7, "queued": 0, "running": 0},
        "lifecycle": {"accepting_rollouts": True, "active_rollouts": 0},
    }
    assert called == ["startup"]
    assert app.state.engine.config.max_concurrent == 7
    assert app.state.engine.config.record_ttl == 120.0


async def test_a_rollout_over_create_app(started, tmp_path):
    _, url, _ = started
    async with LegacyTrainer() as trainer, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/rollout/init", json=trainer.init_body())
        assert answer.status_code == 202, answer.text
        done = await trainer.completed()
    assert done["reward"] == 1.0
    assert list(tmp_path.glob("*/r1-*.jsonl"))


async def test_an_application_may_be_started_again():
    """As test clients do."""
    app = create_app(CalculatorAgent())
    for _ in range(2):
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client,
        ):
            assert (await client.get("/health")).json()["status"] == "healthy"


async def test_stopping_lets_rollouts_run_on(tmp_path):
    app = create_app(CalculatorAgent())
    async with LegacyTrainer() as trainer:
        trainer.latency = 0.3
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, client=("127.0.0.1", 1)), base_url="http://127.0.0.1"
            ) as client,
        ):
            assert (await client.post("/v1/rollout/init", json=trainer.init_body())).status_code == 202
        assert trainer.outcomes[0]["status"] == "COMPLETED"


@pytest.mark.slow
def test_serve_agent_loop_serves_until_it_is_stopped(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\n"
        "from osmosis_grpc.rollout import serve_agent_loop\n"
        "from osmosis_grpc.testing.calculator import agent_loop\n"
        "app = serve_agent_loop(agent_loop, port=int(sys.argv[1]), log_level='warning', api_key='t')\n"
        "print('stopped', type(app).__name__)\n"
    )
    port = quiet_port()
    with subprocess.Popen(
        [sys.executable, str(script), str(port)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:

        def asked():
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/platform/health", headers={"Authorization": "t"})

        answer = wait_until(asked)
        process.send_signal(signal.SIGINT)
        reported, _ = process.communicate(timeout=20)
    assert answer.status_code == 200
    assert reported == "stopped FastAPI\n"


def test_serve_agent_loop_refuses_what_is_not_safe_or_not_valid():
    with pytest.raises(ValueError, match="token"):
        serve_agent_loop(CalculatorAgent(), host="0.0.0.0")
    for key in ("", "a\nb", "ü"):  # a key that would guard nothing
        with pytest.raises(ValueError, match="printable ASCII"):
            serve_agent_loop(CalculatorAgent(), api_key=key)
    with pytest.raises(AgentLoopValidationError):
        serve_agent_loop(type("Bad", (CalculatorAgent,), {"get_tools": lambda self, request: [5]})())


async def test_a_rollout_that_does_not_end_in_time_is_reported_to_its_trainer(monkeypatch, caplog):
    monkeypatch.setattr(app_module, "DRAIN_TIMEOUT", 0.2)

    async def run(self, ctx):
        await asyncio.Event().wait()

    body = {"name": "hangs", "get_tools": lambda self, request: [], "run": run}
    app = create_app(type("Hangs", (RolloutAgentLoop,), body)())
    async with LegacyTrainer() as trainer:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, client=("127.0.0.1", 1)), base_url="http://127.0.0.1"
            ) as client,
        ):
            assert (await client.post("/v1/rollout/init", json=trainer.init_body())).status_code == 202
        assert trainer.outcomes[0]["error_message"] == "FAILED: the server shut down"
    assert "the drain limit of 0.2 s is over: 1 running" in caplog.text
