"""The serve command: options, checks, and the process around an AgentServer.

Heavy imports stand in the functions, so that --help answers at once.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    import anyio

    from osmosis_grpc.agent import RolloutAgentLoop
    from osmosis_grpc.engine import EngineConfig
    from osmosis_grpc.serve.records import Records

log = logging.getLogger(__name__)

EXIT_AFTER_LIMIT = 4.5
"""Seconds after the drain limit at which the process ends, whatever still runs."""


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class _Options:
    host: str
    port: int
    allow_targets: list[str]
    log_folder: Path | None
    drain_timeout: float
    max_metadata_bytes: int


def serve(
    module: Annotated[
        list[str], typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Agent loop to host; may be repeated.")
    ],
    host: Annotated[str, typer.Option("--host", "-H", help="Address to bind; loopback only.")] = "127.0.0.1",
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=0, max=65535, help="gRPC port; 0 picks a free one.")
    ] = 50051,
    max_concurrent: Annotated[
        int | None, typer.Option("--max-concurrent", min=1, help="Rollouts that run at once.  [default: 100]")
    ] = None,
    record_ttl: Annotated[
        float | None, typer.Option("--record-ttl", min=1, help="Seconds that ended rollouts are kept.  [default: 3600]")
    ] = None,
    allow_target: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-target", metavar="HOST[:PORT]|CIDR", help="Callback target to allow beside loopback; repeatable."
        ),
    ] = None,
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Do not validate the agents first.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="DIR", help="Write one .jsonl file per rollout below DIR.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="How much is logged, on stderr.")] = LogLevel.INFO,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", min=0, help="Seconds that running rollouts get on SIGTERM.")
    ] = 30.0,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file below here changes.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Only JSON records on stdout; the first one says ready.")
    ] = False,
) -> None:
    """Host agent loops over gRPC."""
    from osmosis_grpc.link.targets import TargetPolicy, is_loopback
    from osmosis_grpc.serve.records import records

    if not is_loopback(host):
        _usage(f"--host {host} is not loopback: a public address needs a token or TLS, and there is neither yet")
    try:
        TargetPolicy(loopback=True, allow=allow_target or ())
    except ValueError as error:
        _usage(f"--allow-target: {error}")
    if reload:
        from osmosis_grpc.serve.reload import run_reloading

        raise typer.Exit(run_reloading())
    with records(json) as out:
        from osmosis_grpc.serve import logs

        logs.configure(log_level)
        loops = _load(module, validate=not no_validate)
        config, max_metadata_bytes = _config(max_concurrent, record_ttl)
        options = _Options(host, grpc_port, allow_target or [], log, drain_timeout, max_metadata_bytes)
        code = _run(loops, config, options, out, json)
    raise typer.Exit(code)


def _usage(problem: str) -> NoReturn:
    typer.echo(f"serve: {problem}", err=True)
    raise typer.Exit(2)


def _load(specs: list[str], *, validate: bool) -> "list[RolloutAgentLoop]":
    from osmosis_grpc.agent.loader import LoadError, load_agent_loops
    from osmosis_grpc.agent.validator import place_of_error, validate_agent_loop

    try:
        loops = load_agent_loops(specs)
    except LoadError as error:
        _usage(str(error))
    except TypeError as error:
        file, line = place_of_error(error)
        _usage(f"{error}" + (f" ({file}:{line})" if file else ""))
    findings = [finding for loop in loops for finding in validate_agent_loop(loop).findings] if validate else []
    for finding in findings:
        place = f"{finding.file}:{finding.line}" if finding.file else "?"
        typer.echo(f"{finding.severity}: {finding.code} {place}: {finding.message} ({finding.hint})", err=True)
    if any(finding.severity == "error" for finding in findings):
        typer.echo("serve: not started; --no-validate starts anyway", err=True)
        raise typer.Exit(1)
    return loops


def _config(max_concurrent: int | None, record_ttl: float | None) -> "tuple[EngineConfig, int]":
    from pydantic import ValidationError

    from osmosis_grpc.engine import EngineConfig
    from osmosis_grpc.settings import RolloutServerSettings

    try:
        settings = RolloutServerSettings()
    except ValidationError as error:
        prefix = RolloutServerSettings.model_config["env_prefix"]
        rows = [f"{prefix}{str(row['loc'][0]).upper()}: {row['msg']}" for row in error.errors()]
        _usage("; ".join(rows))
    config = EngineConfig(
        max_concurrent=max_concurrent or settings.max_concurrent_rollouts,
        record_ttl=record_ttl or settings.record_ttl_seconds,
    )
    return config, settings.max_metadata_size_bytes


def _run(loops: "list[RolloutAgentLoop]", config: "EngineConfig", options: _Options, out: "Records", json: bool) -> int:
    import anyio

    return anyio.run(_serve, loops, config, options, out, json)


async def _serve(
    loops: "list[RolloutAgentLoop]", config: "EngineConfig", options: _Options, out: "Records", json: bool
) -> int:
    from osmosis_grpc import __version__
    from osmosis_grpc.server import AgentServer
    from osmosis_grpc.server.tracelog import TraceLog

    stop = _stop_on_signals(options.drain_timeout)
    sinks = [TraceLog(options.log_folder)] if options.log_folder else []
    server = AgentServer(
        loops, host=options.host, port=options.port, config=config, allow_targets=options.allow_targets,
        max_metadata_bytes=options.max_metadata_bytes, sinks=sinks,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            typer.echo(f"serve: {error}; --grpc-port chooses another", err=True)
            return 2
        names = sorted(loop.name for loop in loops)
        out.write("ready", grpc=server.address, agent_loops=names, pid=os.getpid(), version=__version__)
        if not json:
            _banner(server.address, names)
        await stop.wait()
        out.write("draining", limit=options.drain_timeout)
        log.info("draining for at most %g s; a second signal stops at once", options.drain_timeout)
        await server.stop(options.drain_timeout)
        left = server.engine.capacity()
    out.write("stopped", undelivered=left.undelivered, abandoned=left.abandoned)
    if left.abandoned:
        log.warning("%d agents never stopped; ending without them", left.abandoned)
        _exit_now(0)
    return 0


def _stop_on_signals(limit: float) -> "anyio.Event":
    """An event that the first SIGTERM or SIGINT sets. The second ends the process, and so does time."""
    import asyncio

    import anyio

    stop, loop = anyio.Event(), asyncio.get_running_loop()
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


def _banner(address: str, names: list[str]) -> None:
    typer.echo(f"serving {', '.join(names)}")
    typer.echo(f"  gRPC    {address}")
    typer.echo("  try     buf curl --protocol grpc --http2-prior-knowledge "
               f"http://{address}/osmosis.rollout.v1.RolloutService/GetServerInfo")  # fmt: skip
