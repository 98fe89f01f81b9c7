"""create_app and serve_agent_loop: serve an agent loop over HTTP, without gRPC."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from osmosis_gateway.http1 import BoundedProtocol
from osmosis_gateway.http_server import tokens_of
from osmosis_gateway.in_process import InProcessRollouts
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.routes import HttpAccess, add_routes, gateway_app
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.validator import validate_agent_loop
from osmosis_grpc.engine import Engine, EngineConfig
from osmosis_grpc.link.bearer_tokens import check_token
from osmosis_grpc.link.server_security import ServerSecurity
from osmosis_grpc.link.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.observability.server_metrics import ServerMetrics
from osmosis_grpc.server.tracelog import TraceLog
from osmosis_grpc.settings import RolloutServerSettings, RolloutSettings, forget_secrets, get_settings
from osmosis_grpc.storage import MemoryJournal

Hook = Callable[[], Awaitable[None]]

DRAIN_TIMEOUT = 30.0
"""When the application stops, it waits at most this many seconds for running rollouts to end."""


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    debug_dir: str | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
) -> FastAPI:
    """Return an application for uvicorn. Parameters that are left out come from the settings.

    `max_concurrent` is 100 by default in the settings. `on_startup` and `on_shutdown` are awaited when the application
    starts and stops. Each rollout writes one .jsonl file in `debug_dir`. At the stop, the application waits
    DRAIN_TIMEOUT seconds for running rollouts. Without a token, a caller on this machine can only name a trainer on
    this machine.
    """
    known = settings or get_settings()
    config = EngineConfig(
        max_concurrent=known.server.max_concurrent_rollouts if max_concurrent is None else max_concurrent,
        record_ttl=known.server.record_ttl_seconds if record_ttl_seconds is None else record_ttl_seconds,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sinks = [TraceLog(debug_dir)] if debug_dir else []
        async with (
            Calls(known.client, checked_only=True) as calls,
            Engine([agent_loop], config, sinks=sinks, journal=MemoryJournal()) as engine,
        ):
            trainers = HttpTrainers(calls, TargetPolicy(loopback=False), known.client)
            app.state.engine, app.state.rollouts = engine, InProcessRollouts(engine, trainers.peer)
            app.state.metrics = ServerMetrics(engine)
            if on_startup is not None:
                await on_startup()
            try:
                yield
                await engine.shutdown.stop(DRAIN_TIMEOUT)
            finally:
                if on_shutdown is not None:
                    await on_shutdown()

    app = gateway_app("osmosis_grpc", lifespan=lifespan)
    add_routes(app, HttpAccess(tokens=tokens_of(known), max_metadata_bytes=known.server.max_metadata_size_bytes))
    return app


def serve_agent_loop(
    agent_loop: RolloutAgentLoop,
    *,
    host: str = "127.0.0.1",
    port: int = 9000,
    validate: bool = True,
    log_level: str = "info",
    settings: RolloutSettings | None = None,
    api_key: str | None = None,
    insecure: bool = False,
    **app_parameters: Any,
) -> FastAPI:
    """Serve an agent loop over HTTP until SIGTERM or SIGINT. Return the application.

    `app_parameters` are parameters of create_app. `api_key` is the token that callers must send. This function has no
    TLS, so a public host needs `insecure=True`. The command `osmosis-grpc serve` has TLS. Raises
    AgentLoopValidationError for an invalid agent loop. Raises ValueError for an invalid `api_key`, and for a public
    host without `insecure` or without a token.
    """
    known = settings or get_settings()
    if api_key is not None:
        check_token(api_key)
        server = RolloutServerSettings.model_validate(known.server.model_dump() | {"token": api_key})
        known = known.model_copy(update={"server": server})
    if not is_loopback(host) and not tokens_of(known):
        raise ValueError(f"host: {host} is a public address, which needs a token: pass api_key=..., or host=127.0.0.1")
    ServerSecurity(tokens=tokens_of(known), insecure=insecure).check_host(host)
    if validate:
        validate_agent_loop(agent_loop).raise_if_invalid()
    app = create_app(agent_loop, settings=known, **app_parameters)
    if settings is None:
        forget_secrets()
    uvicorn.run(app, host=host, port=port, log_level=log_level, http=BoundedProtocol)
    return app
