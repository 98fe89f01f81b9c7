"""The FastAPI application: agent loops over HTTP.

So far it hosts the engine and answers /health; the legacy contract's routes come with the
gateway.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import Engine, EngineConfig
from osmosis_grpc.server.tracelog import TraceLog
from osmosis_grpc.settings import RolloutSettings

Hook = Callable[[], Awaitable[None]]


def create_app(
    agent_loop: RolloutAgentLoop, max_concurrent: int | None = None, record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None, debug_dir: str | None = None, on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
) -> FastAPI:  # fmt: skip
    """An application that uvicorn runs. Parameters left out come from the settings; no
    `max_concurrent` means the default of 100, not that there is no limit.

    `on_startup` and `on_shutdown` are awaited with the application's start and stop;
    `debug_dir` receives one .jsonl file per rollout.
    """
    known = settings or RolloutSettings()
    config = EngineConfig(
        max_concurrent=known.server.max_concurrent_rollouts if max_concurrent is None else max_concurrent,
        record_ttl=known.server.record_ttl_seconds if record_ttl_seconds is None else record_ttl_seconds,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sinks = [TraceLog(debug_dir)] if debug_dir else []
        async with Engine([agent_loop], config, sinks=sinks) as engine:
            app.state.engine = engine
            if on_startup is not None:
                await on_startup()
            try:
                yield
            finally:
                if on_shutdown is not None:
                    await on_shutdown()

    app = FastAPI(title="osmosis_grpc", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server serves, and its counts."""
        engine: Engine = app.state.engine
        return {
            "status": "draining" if engine.draining else "healthy",
            "agent_loop": agent_loop.name,
            "active_rollouts": engine.capacity().running,
            "completed_rollouts": engine.completed,
        }

    return app
