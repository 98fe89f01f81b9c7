"""Runs one agent server process: listeners, signals, the ready record, shutdown and exit code."""

import asyncio
import errno
import gc
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc import __version__
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine import failpoints
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.free_ports import check_free
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.protocol.errors import CallError, MissingExtraError, Unavailable
from osmosis_grpc.protocol.types import events
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.serve.json_output import Records
from osmosis_grpc.serve.program_options import hosted_programs
from osmosis_grpc.serve.rollout_log import RolloutLog
from osmosis_grpc.serve.workers.worker import Worker
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.server.tracelog import DebugLog, TraceLog, new_folder
from osmosis_grpc.server.workers.siblings import WorkersConfig
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.compound_values import split_legacy_agent
from osmosis_grpc.settings.option import split_host_port
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal.schema import LOCK
from osmosis_grpc.storage.lock_file import stop_by
from osmosis_grpc.supervise import OnFailure, job, thread

if TYPE_CHECKING:
    from osmosis_grpc.serve.workers.place import Place
    from osmosis_grpc.settings.settings import RolloutServerSettings, RolloutSettings

log = logging.getLogger(__name__)

END = job("serve.end", OnFailure.RESTART, "thread")

GC_THRESHOLD = (50_000, 20, 100)
"""Thresholds of the garbage collector. With the default of 700 allocations, it would scan all rollouts too often."""
EXIT_AFTER_LIMIT = 4.5
"""This many seconds after the drain limit, the process ends even if agents still run."""


async def run_process(
    loops: Sequence[RolloutAgentLoop | Runnable],
    config: ServerConfig,
    settings: "RolloutSettings",
    security: ServerSecurity,
    credentials: Credentials,
    out: Records,
    place: "Place | None" = None,
) -> int:
    """Serve until a signal or a failure. Return the exit code.

    `security` says how callers authenticate. `credentials` are for the trainers that this server connects to. `place`
    is set if this process is one of several workers. Raises OptionError.
    """
    options = settings.server
    worker = Worker(place, options, out) if place is not None else None
    out = worker.out if worker is not None else out
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    failpoints.arm()
    servers: list[AgentServer] = []
    stop = _stop_on_signals(options.drain_timeout, servers)
    if worker is not None:
        worker.listen(stop, end_after)
    if not options.no_http or options.metrics_port is not None:
        import osmosis_gateway.http_server  # noqa: F401 # takes a second, so import it before calls arrive
    async with AsyncExitStack() as stack:
        if options.otel:
            _trace(stack)
        legacy = [await _legacy(stack, text, settings) for text in options.legacy_agent]
        programs, supervisors = await hosted_programs(stack, options, worker)
        supervisors += [loop.supervisor for loop in legacy]
        hosted = [*loops, *legacy, *programs]
        names = sorted(loop.name for loop in hosted)
        if len(set(names)) < len(names):
            raise OptionError(
                "two agent loops have the same name: {names}; give a legacy agent another one with {legacy_agent} "
                "NAME=URL, and a program with {command_name}",
                names=", ".join(names),
            )
        workers = worker.config if worker is not None else None
        server = await _grpc(stack, hosted, config, options, security, credentials, workers)
        servers.append(server)
        is_first = worker is None or worker.is_first
        http = await _http(stack, server, settings, is_first=is_first)
        addresses = {"grpc": server.address} | ({"http": http.address} if http and is_first else {})
        if options.metrics_port is not None and is_first:
            addresses["metrics"] = await _metrics(stack, server, options.host, options.metrics_port)
        if options.view and is_first:
            addresses["view"] = await _view(stack, server, options, security)
        if not (security.authenticates or is_loopback(options.host)):
            log.warning(
                "every caller that reaches %s may start rollouts; require a credential with --token-file or "
                "--tls-client-ca",
                options.host,
            )
        server.engine.watchdog.paused = False
        if worker is not None:
            await worker.begin(server)
        out.write("ready", **addresses, agent_loops=names, pid=os.getpid(), version=__version__)
        out.say(_banner(names, addresses, security, options.token_file))
        state = options.state_folder
        log.info(
            "serving %s",
            ", ".join(names),
            extra={**addresses, "agent_loops": names, "state_dir": str(state or ":memory:"), "version": __version__},
        )
        supervisors.insert(0, server.supervisor)
        for supervisor in supervisors:
            supervisor.add_listener(lambda error: stop.set())
        await stop.wait()
        failed = next(filter(None, (supervisor.failure for supervisor in supervisors)), None)
        if worker is not None and worker.failure is not None:
            worker.clean()
            failed = failed or worker.failure
        limit = options.drain_timeout
        if failed is not None:  # the next process continues the journaled rollouts
            limit = 0.0
            log.error("the agent server has failed: %r; it stops with exit code 1", failed)
            end_after(limit)
        if state is not None:
            stop_by(state / LOCK, time.time() + limit + EXIT_AFTER_LIMIT + 1)
        out.write("draining", limit=limit)
        log.info("stopping; a second signal stops at once", extra={"drain_timeout": limit})
        await server.stop(limit, park=worker is not None and worker.restarts)
        left, kept = server.engine.capacity(), len(server.engine.shutdown.parked)
    out.write("stopped", undelivered=left.undelivered, abandoned=left.abandoned, kept=kept)
    log.info(
        "stopped",
        extra={"ended": left.completed, "undelivered": left.undelivered, "abandoned": left.abandoned, "kept": kept},
    )
    if left.abandoned:
        log.warning("%d agents did not stop; the process ends without them", left.abandoned)
        _exit_now(1 if failed is not None else 0)
    return 1 if failed is not None else 0


def _trace(stack: AsyncExitStack) -> None:
    """Start tracing. Raises OptionError."""
    from osmosis_grpc.serve.otel import tracing

    try:
        stack.enter_context(tracing())
    except MissingExtraError as error:
        raise OptionError("{error}", error=error) from None
    except ValueError as error:
        raise OptionError("{otel}: {error}", error=error) from None


async def _legacy(stack: AsyncExitStack, text: str, settings: "RolloutSettings") -> Any:
    """Start and return the agent that passes rollouts to a legacy agent server. Raises OptionError."""
    from osmosis_gateway.workflow_server_agent import hosted_legacy_agent

    name, url = split_legacy_agent(text)
    try:
        loop = await hosted_legacy_agent(
            url,
            name=name,
            api_key=settings.server.secret("legacy_agent_token"),
            listen=split_host_port(settings.server.legacy_listen),
            settings=settings.client,
        )
        return await stack.enter_async_context(loop)
    except CallError as error:
        text = "{legacy_agent} {url}: {error}; start it first, or give its name: NAME={url}"
        raise OptionError(text, url=url, error=error) from None
    except OSError as error:
        raise OptionError("{legacy_listen}: {error}", error=error) from None


async def _grpc(
    stack: AsyncExitStack,
    loops: Sequence[RolloutAgentLoop | Runnable],
    config: ServerConfig,
    options: "RolloutServerSettings",
    security: ServerSecurity,
    credentials: Credentials,
    workers: WorkersConfig | None,
) -> AgentServer:
    """Start the agent server and return it. Raises OptionError."""
    state = options.state_folder
    try:
        if state is not None and not state.exists():
            check_free(options.host, options.grpc_port)  # before a folder is made for the journal
        server = AgentServer(
            loops,
            host=options.host,
            port=options.grpc_port,
            config=config,
            connect=options.connect,
            security=security,
            credentials=credentials,
            state_dir=state,
            workers=workers,
        )
        server.engine.watchdog.paused = True
        if options.log:
            folder = new_folder(options.log)
            server.engine.log.add_sink(DebugLog(folder), events.Logged)
            server.engine.log.add_sink(TraceLog(folder / "events"))
        rollout_log = RolloutLog()
        server.engine.end_sinks.append(rollout_log)
        await stack.enter_async_context(rollout_log.summaries(server.engine.capacity, server.supervisor))
        return await stack.enter_async_context(server)
    except (JournalError, Unavailable) as error:  # the journal cannot be opened or read
        text = "{error}; {state_dir} chooses another folder, {no_journal} keeps no journal"
        raise OptionError(text, error=error) from None
    except OSError as error:
        text = "{error}; {grpc_port} chooses another port"
        if error.errno == errno.EADDRINUSE:
            text += ", and for a second server so do {http_port} and {state_dir}; "
            text += "`osmosis-grpc ping {address}` asks who has it"
        raise OptionError(text, error=error, address=f"{options.host}:{options.grpc_port}") from None


async def _http(stack: AsyncExitStack, server: AgentServer, settings: "RolloutSettings", *, is_first: bool) -> Any:
    """Start the HTTP server and return it; None with --no-http. In a worker that is not the first, it serves worker 0.

    If the default port is taken, the server logs a warning and serves gRPC only. Raises OptionError if a port that the
    user gave is taken.
    """
    options = settings.server
    if options.no_http and (is_first or options.metrics_port is None):
        return None
    from osmosis_gateway.http_server import serve_http

    try:
        return await stack.enter_async_context(
            serve_http(server, host=options.host, port=options.http_port, settings=settings)
        )
    except OSError as error:
        if "http_port" in options.model_fields_set:
            text = "{error}; {http_port} chooses another port, {no_http} serves gRPC only"
            raise OptionError(text, error=error) from None
        log.warning("no HTTP: %s; -p chooses another port, --no-http silences this", error)
        return None


async def _metrics(stack: AsyncExitStack, server: AgentServer, host: str, port: int) -> str:
    """Serve /metrics on a separate port and return the address. Raises OptionError."""
    from osmosis_gateway.http_server import serve_metrics

    try:
        http = await stack.enter_async_context(serve_metrics(server, host=host, port=port))
    except MissingExtraError as error:
        raise OptionError("{metrics_port}: {error}", error=error) from None
    except OSError as error:
        raise OptionError("{error}; {metrics_port} chooses another port", error=error) from None
    return str(http.address)


async def _view(
    stack: AsyncExitStack, server: AgentServer, options: "RolloutServerSettings", security: ServerSecurity
) -> str:
    """Serve the viewer over the state folder and return the address. Raises OptionError."""
    from osmosis_grpc.viewer.app import serve_viewer
    from osmosis_grpc.viewer.live import AGENTS_SHARE
    from osmosis_grpc.viewer.metrics import metrics_of

    state = options.state_folder
    assert state is not None  # the command has checked it
    for port in [options.view_port] if "view_port" in options.model_fields_set else [options.view_port, 0]:
        viewer = serve_viewer(
            FolderSource(state),
            host=options.host,
            port=port,
            token=security.admin_tokens,
            tls=security.tls,
            metrics=metrics_of(server),
            share=AGENTS_SHARE,
            words=f"--from {shlex.quote(str(state))}",
        )
        try:
            return str((await stack.enter_async_context(viewer)).address)
        except OSError as error:
            problem = error
    raise OptionError("{problem}; {view_port} chooses another port", problem=problem)


def _stop_on_signals(limit: float, servers: Sequence[AgentServer]) -> asyncio.Event:
    """Return an event that the first SIGTERM, SIGINT or SIGHUP sets. A second signal ends the process at once.

    After the first signal, end_after(limit) limits how long the process can take. The log line about the second signal
    has the number of unfinished rollouts of `servers`.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            capacities = [server.engine.capacity() for server in servers]
            count = sum(capacity.running + capacity.queued for capacity in capacities)
            waiting = sum(capacity.undelivered for capacity in capacities)
            text = "stopped at once: %d did not end, %d ended without a receipt of the trainer"
            log.warning(text, count, waiting)
            _exit_now(128 + number)
        loop.call_soon_threadsafe(stop.set)
        end_after(limit)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handle)
    return stop


def end_after(limit: float) -> None:
    """End the process with exit code 1 if it still runs EXIT_AFTER_LIMIT seconds after the drain limit."""
    at = time.monotonic() + limit + EXIT_AFTER_LIMIT

    def wait() -> bool:
        time.sleep(max(0.0, at - time.monotonic()))
        _exit_now(1)
        return False

    thread(END, wait)


def _exit_now(code: int) -> None:
    """End the process without cleanup, so that an agent that does not stop cannot keep the process alive."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stderr.flush()
    os._exit(code)


def _banner(names: Sequence[str], addresses: dict[str, str], security: ServerSecurity, token_file: Path | None) -> str:
    scheme = "https" if security.tls else "http"
    ping = f"osmosis-grpc ping {addresses['grpc']}"
    ping += " --tls" if security.tls else ""
    ping += f" --token-file {shlex.quote(str(token_file or 'FILE'))}" if security.tokens else ""
    lines = [
        f"serving {', '.join(names)}",
        f"  gRPC    {addresses['grpc']}",
        f"  try     {ping}",
        f"  HTTP    {scheme}://{addresses['http']}/v1/rollout/init, and /rollout" if "http" in addresses else "",
        f"  metrics http://{addresses['metrics']}/metrics" if "metrics" in addresses else "",
        f"  view    {scheme}://{addresses['view']}/{'?token=...' * bool(security.admin_tokens)}"
        if "view" in addresses
        else "",
    ]
    return "\n".join(filter(None, lines))
