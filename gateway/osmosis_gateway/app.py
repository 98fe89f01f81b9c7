"""create_app and serve_agent_loop: serve an agent loop over HTTP, without gRPC."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

import osmosis_grpc.endpoints  # noqa: F401 # lets agents ask for the base URL of a rollout
from osmosis_gateway.http_server import InProcessRollouts, NotStarted, tokens_of
from osmosis_gateway.leases import Leases, LeaseTimes
from osmosis_gateway.legacy_trainers import HttpTrainers
from osmosis_gateway.outgoing_calls import Calls
from osmosis_gateway.rollout_routes import add_rollout_routes
from osmosis_gateway.routes import HttpAccess, add_routes
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.ports import EventSink
from osmosis_grpc.agent.request_model import metadata_limit_that_was_set
from osmosis_grpc.agent.validator import validate_agent_loop
from osmosis_grpc.engine import Engine, EngineConfig
from osmosis_grpc.network.bearer_tokens import Tokens, check_token
from osmosis_grpc.network.http.connections import BoundedProtocol
from osmosis_grpc.network.http.server import http_app
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.target_policy import TargetPolicy, is_loopback
from osmosis_grpc.observability.server_metrics import ServerMetrics
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.server.tracelog import DebugLog, TraceLog, new_folder
from osmosis_grpc.settings.process_environment import forget_secrets
from osmosis_grpc.settings.settings import RolloutSettings, get_settings
from osmosis_grpc.storage import MemoryJournal

log = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None]]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9000
DRAIN_TIMEOUT = 30.0
"""When the application stops, it waits at most this many seconds for running rollouts to end."""


class ServeError(OsmosisRolloutError, ValueError):
    """serve_agent_loop cannot start a server with these parameters."""

    boundary = "server"


def create_app(
    agent_loop: RolloutAgentLoop,
    max_concurrent: int | None = None,
    record_ttl_seconds: float | None = None,
    settings: RolloutSettings | None = None,
    debug_dir: str | None = None,
    on_startup: Hook | None = None,
    on_shutdown: Hook | None = None,
    *,
    api_key: str | None = None,
    allow_target: Sequence[str] = (),
    **platform: Any,
) -> FastAPI:
    """Return an application for uvicorn or for Starlette's TestClient.

    Parameters that are left out come from the settings, where `max_concurrent` is 100 by default. `on_startup` and
    `on_shutdown` are awaited when the application starts and stops. ctx.log_event writes to
    `debug_dir`/ROLLOUT_ID.jsonl; all events of a rollout go to a subfolder named after the start time. When the
    application stops, it waits up to DRAIN_TIMEOUT seconds for running rollouts, unless a TestClient started one.

    `api_key` is the token that callers must send. It replaces the tokens of the settings. Without a token, a caller on
    this machine can only use a trainer on this machine, or one that `allow_target` lists: HOST, HOST:PORT or a
    network. A TestClient counts as a caller on this machine. The Osmosis SDK's `credentials`, `server_host` and
    `server_port` have no effect, because the server registers with no platform. Raises ValueError for an invalid
    `api_key` or `allow_target`.
    """
    _ignore("create_app", platform, ("credentials", "server_host", "server_port"))
    known = settings or get_settings()
    config = EngineConfig(
        max_concurrent=known.server.max_concurrent_rollouts if max_concurrent is None else max_concurrent,
        record_ttl=known.server.record_ttl_seconds if record_ttl_seconds is None else record_ttl_seconds,
    )

    @asynccontextmanager
    async def hooks(app: FastAPI) -> AsyncIterator[None]:
        if on_startup is not None:
            await on_startup()
        try:
            yield
        finally:
            if on_shutdown is not None:
                await on_shutdown()

    return agent_app(
        agent_loop.name,
        lambda: nullcontext(agent_loop),
        config,
        known,
        tokens=None if api_key is None else Tokens(f"api={check_token(api_key)}"),
        policy=TargetPolicy(loopback=False, allow=allow_target, option="create_app(allow_target=[...])"),
        lifespan=hooks,
        sinks=partial(_sinks, debug_dir),
    )


def agent_app(
    name: str,
    open_agent: Callable[[], AbstractAsyncContextManager[Any]],
    config: EngineConfig,
    known: RolloutSettings,
    *,
    tokens: Tokens | None,
    policy: TargetPolicy,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Any]],
    sinks: Callable[[], Sequence[EventSink]] = tuple,
    times: LeaseTimes | None = None,
) -> FastAPI:
    """Return an application with an agent.

    Args:
        name: The name of the agent, and the title of the application.
        open_agent: Returns a context manager that yields the agent. It is entered when the application starts.
        config: The limits of the engine.
        known: The settings.
        tokens: The tokens of callers. They replace the tokens of the settings.
        policy: Decides which trainers may be called.
        lifespan: A context manager that is entered when the engine has started, and left when the application stops.
        sinks: Returns the sinks of events.
        times: The time limits of polled results.
    """
    tokens = tokens_of(known) if tokens is None else tokens

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with (
            Calls(known.client, checked_only=True) as calls,
            open_agent() as agent,
            Engine([agent], config, sinks=app.state.make_sinks(), journal=MemoryJournal()) as engine,
        ):
            leases = Leases(engine, times)
            trainers = HttpTrainers(calls, policy, known.client, leases)
            leases.start()

            async def drain() -> None:
                engine.shutdown.drain()

            app.state.engine, app.state.metrics = engine, ServerMetrics(engine)
            app.state.rollouts = InProcessRollouts(engine, trainers.peer, leases, drain)
            async with lifespan(app):
                try:
                    yield
                    await engine.shutdown.stop(0.0 if app.state.called_by_test_client else DRAIN_TIMEOUT)
                finally:
                    app.state.rollouts = NotStarted(name)

    app = http_app(name, lifespan=life)
    app.state.rollouts, app.state.called_by_test_client = NotStarted(name), False
    app.state.make_sinks = sinks
    limit = metadata_limit_that_was_set() or known.server.max_metadata_size_bytes
    access = HttpAccess(tokens=tokens, max_metadata_bytes=limit)
    add_routes(app, access)
    add_rollout_routes(app, access)
    return app


def serve_agent_loop(
    agent_loop: RolloutAgentLoop,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    validate: bool = True,
    log_level: str = "info",
    settings: RolloutSettings | None = None,
    api_key: str | None = None,
    local_debug: bool = False,
    reload: bool = False,
    insecure: bool = False,
    debug_dir: str | None = None,
    **app_parameters: Any,
) -> FastAPI:
    """Serve an agent loop over HTTP until SIGTERM or SIGINT. Return the application.

    `app_parameters` are parameters of create_app. `api_key` is the token that callers must send. With `local_debug`,
    callers need no token, even if the settings have tokens. This function has no TLS, so a public host needs
    `insecure=True`. The command `osmosis-grpc serve` has TLS. `debug_dir` gets a subfolder named after the start time.
    The Osmosis SDK's `skip_register` has no effect, because the server registers with no platform.

    Raises AgentLoopValidationError for an invalid agent loop. Raises ServeError, a ValueError, for a public host
    without a token, for `local_debug` with an `api_key`, and for `reload`, which only the command `serve` has. Raises
    ValueError for an invalid `api_key`, and for a public host without `insecure`.
    """
    if reload:
        raise ServeError("reload: use the command: osmosis-grpc serve --reload -m MODULE:ATTR")
    if local_debug and api_key is not None:
        raise ServeError("local_debug: asks no caller for a token, and api_key is one: leave one of them out")
    platform = {name: app_parameters.pop(name) for name in ("skip_register",) if name in app_parameters}
    _ignore("serve_agent_loop", platform, platform)
    known = settings or get_settings()
    if local_debug:
        known = known.model_copy(update={"server": known.server.model_copy(update={"local": True})})
    tokens = tokens_of(known) if api_key is None else Tokens(f"api={check_token(api_key)}")
    if not is_loopback(host) and not tokens:
        raise ServeError(f"host: {host} is a public address, which needs a token: pass api_key=..., or host=127.0.0.1")
    ServerSecurity(tokens=tokens, insecure=insecure).check_host(host)
    if validate:
        validate_agent_loop(agent_loop).raise_if_invalid()
    app = create_app(agent_loop, settings=known, api_key=api_key, **app_parameters)
    if debug_dir:
        app.state.make_sinks = partial(_sinks, new_folder(debug_dir), events="events")
    if settings is None:
        forget_secrets()
    uvicorn.run(app, host=host, port=port, log_level=log_level, http=BoundedProtocol)
    return app


def _sinks(folder: Path | str | None, events: str = "") -> list[EventSink]:
    """Return the sinks of a debug folder. Events go to its subfolder `events`, or to a new subfolder without a name."""
    if not folder:
        return []
    return [DebugLog(folder), TraceLog(Path(folder, events) if events else new_folder(folder))]


def _ignore(function: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Log parameters of the Osmosis SDK that have no effect. Raises TypeError for a parameter that is not `known`."""
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    if given:
        names = ", ".join(given)
        log.info("%s: %s have no effect: this server is registered with no platform", function, names)
