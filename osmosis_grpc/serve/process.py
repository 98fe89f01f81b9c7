"""The process around an AgentServer: doors, signals, the ready record, the way out."""

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from osmosis_grpc import __version__
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import EngineConfig, failpoints
from osmosis_grpc.errors import CallError, Unavailable
from osmosis_grpc.journal import JournalError
from osmosis_grpc.link.credentials import Access
from osmosis_grpc.link.security import Security
from osmosis_grpc.link.targets import is_loopback
from osmosis_grpc.serve.records import Records
from osmosis_grpc.server import AgentServer
from osmosis_grpc.server.tracelog import TraceLog

if TYPE_CHECKING:
    from osmosis_grpc.settings import RolloutSettings

log = logging.getLogger(__name__)

GC_THRESHOLD = (50_000, 20, 100)
"""Python's default collects after every 700 allocations, and goes through a thousand live rollouts to find nothing."""
EXIT_AFTER_LIMIT = 4.5
"""Seconds after the drain limit at which the process ends, whatever still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line said."""

    host: str
    grpc_port: int
    http_port: int | None
    """None for no HTTP."""
    http_wanted: bool
    """Whether HTTP was asked for, and is not there by default only."""
    allow_targets: Sequence[str]
    legacy_agents: Sequence[tuple[str, str]]
    """Names ("" to be asked for) and URLs of legacy agent servers to host."""
    legacy_listen: tuple[str, int]
    connect: Sequence[str]
    """Trainers to dial out to."""
    security: Security
    """What callers have to show."""
    trainers: Access
    """How trainers are dialled."""
    log_folder: Path | None
    state_dir: Path | None
    """None for no journal."""
    drain_timeout: float
    json: bool


class _NotStarted(Exception):
    """The process cannot start, and this is why."""


async def run_process(
    loops: Sequence[RolloutAgentLoop], config: EngineConfig, settings: "RolloutSettings", options: Options, out: Records
) -> int:
    """Serve until told to stop. Returns the exit code."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    failpoints.arm(settings.failpoint)
    stop = _stop_on_signals(options.drain_timeout)
    if options.http_port is not None:
        importlib.import_module("osmosis_gateway.door")  # takes a second, and later calls would wait for it
    try:
        async with AsyncExitStack() as stack:
            hosted = [*loops, *[await _legacy(stack, row, settings, options) for row in options.legacy_agents]]
            names = sorted(loop.name for loop in hosted)
            if len(set(names)) < len(names):
                raise _NotStarted(f"agent loops need names of their own: {', '.join(names)}; NAME=URL gives one")
            server = await _grpc(stack, hosted, config, settings, options)
            http = await _http(stack, server, settings, options)
            doors = {"grpc": server.address} | ({"http": http.address} if http else {})
            if not (options.security.authenticates or is_loopback(options.host)):
                log.warning(
                    "whoever reaches %s may start rollouts: --token or --tls-client-ca says who may", options.host
                )
            server.engine.watchdog.paused = False
            out.write("ready", **doors, agent_loops=names, pid=os.getpid(), version=__version__)
            if not options.json:
                _banner(names, doors, options.security)
            await stop.wait()
            out.write("draining", limit=options.drain_timeout)
            log.info("draining for at most %g s; a second signal stops at once", options.drain_timeout)
            await server.stop(options.drain_timeout)
            left, kept = server.engine.capacity(), len(server.engine.shutdown.parked)
    except _NotStarted as error:
        typer.echo(f"serve: {error}", err=True)
        return 2
    out.write("stopped", undelivered=left.undelivered, abandoned=left.abandoned, kept=kept)
    if left.abandoned:
        log.warning("%d agents never stopped; ending without them", left.abandoned)
        _exit_now(0)
    return 0


async def _legacy(
    stack: AsyncExitStack, row: tuple[str, str], settings: "RolloutSettings", options: Options
) -> RolloutAgentLoop:
    name, url = row
    token = settings.server.legacy_agent_token
    try:
        loop = importlib.import_module("osmosis_gateway.agent_loop").HttpAgentLoop(
            url, name=name, api_key=token.get_secret_value() if token else "", listen=options.legacy_listen,
            settings=settings.client,
        )  # fmt: skip
        entered: RolloutAgentLoop = await stack.enter_async_context(loop)
    except CallError as error:
        raise _NotStarted(f"--legacy-agent {url}: {error}; start it first, or say its name: NAME={url}") from None
    except OSError as error:
        raise _NotStarted(f"--legacy-listen: {error}") from None
    return entered


async def _grpc(
    stack: AsyncExitStack, loops: Sequence[RolloutAgentLoop], config: EngineConfig, settings: "RolloutSettings",
    options: Options,
) -> AgentServer:  # fmt: skip
    sinks = [TraceLog(options.log_folder)] if options.log_folder else []
    try:
        server = AgentServer(
            loops, host=options.host, port=options.grpc_port, config=config, allow_targets=options.allow_targets,
            max_metadata_bytes=settings.server.max_metadata_size_bytes, sinks=sinks,
            connect=options.connect, security=options.security, trainers=options.trainers, state_dir=options.state_dir,
        )  # fmt: skip
        server.engine.watchdog.paused = True
        return await stack.enter_async_context(server)
    except (JournalError, Unavailable) as error:  # it cannot be opened, or not be read
        raise _NotStarted(f"{error}; --state-dir chooses another, --no-journal does without") from None
    except OSError as error:
        raise _NotStarted(f"{error}; --grpc-port chooses another") from None


async def _http(stack: AsyncExitStack, server: AgentServer, settings: "RolloutSettings", options: Options) -> Any:
    """The HTTP door; None without one. A default port that is taken is no reason not to serve gRPC."""
    if options.http_port is None:
        return None
    door = importlib.import_module("osmosis_gateway.door")
    try:
        return await stack.enter_async_context(
            door.open_door(server, host=options.host, port=options.http_port, settings=settings)
        )
    except OSError as error:
        if options.http_wanted:
            raise _NotStarted(f"{error}; -p chooses another port, --no-http does without") from None
        log.warning("no HTTP: %s; -p chooses another port, --no-http silences this", error)
        return None


def _stop_on_signals(limit: float) -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets. The second ends the process, and so does time."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            _exit_now(128 + number)
        loop.call_soon_threadsafe(stop.set)
        timer = threading.Timer(limit + EXIT_AFTER_LIMIT, _exit_now, (1,))
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


def _exit_now(code: int) -> None:
    """End without waiting for anybody: an agent that does not stop must not hold up the process."""
    sys.stderr.flush()
    os._exit(code)


def _banner(names: Sequence[str], doors: dict[str, str], security: Security) -> None:
    scheme, more = ("https", "") if security.tls else ("http", "--http2-prior-knowledge ")
    if security.tokens:
        more += '-H "Authorization: Bearer $TOKEN" '
    typer.echo(f"serving {', '.join(names)}")
    typer.echo(f"  gRPC    {doors['grpc']}")
    typer.echo(f"  try     buf curl --protocol grpc {more}"
               f"{scheme}://{doors['grpc']}/osmosis.rollout.v1.RolloutService/GetServerInfo")  # fmt: skip
    if "http" in doors:
        typer.echo(f"  HTTP    {scheme}://{doors['http']}/v1/rollout/init")
