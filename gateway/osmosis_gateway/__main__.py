"""python -m osmosis_gateway --target HOST:PORT -p 9000

Its options are declared in osmosis_grpc.console. Heavy imports stand in the functions, so that --help
answers at once.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from osmosis_grpc.console.command import command
from osmosis_grpc.console.line import Line
from osmosis_grpc.link.tokens import check_token

if TYPE_CHECKING:
    from osmosis_grpc.link.credentials import Access
    from osmosis_grpc.link.security import Security
    from osmosis_grpc.settings import RolloutSettings

log = logging.getLogger("osmosis_gateway")


def run(line: Line) -> None:
    """Serve the legacy HTTP contract in front of a gRPC agent server."""
    from osmosis_grpc.console import logs
    from osmosis_grpc.settings import by_source, command_settings, forget_secrets, shown_secrets, unknown_variables

    try:
        settings = command_settings(line)
    except ValueError as error:
        _usage(str(error))
    forget_secrets()
    with logs.configured(settings.server.log_level):
        for name, nearest in unknown_variables():
            log.warning("the variable %s is unknown, and ignored%s", name, f": is {nearest} meant?" if nearest else "")
        for flag, file in shown_secrets(line):
            log.warning("%s: every program on this machine can read a command line; use %s", flag, file)
        try:
            security, access = _checked(settings)
            code = asyncio.run(_run(settings, security, access))
        except ValueError as error:
            _usage(by_source(str(error), line, settings))
        except OSError as error:
            _usage(by_source(f"{error}; -p and --callback-port choose other ports", line, settings))
    if code:
        raise typer.Exit(code)


def _checked(settings: "RolloutSettings") -> "tuple[Security, Access]":
    """Return how the gateway is guarded and how the agent server is dialled. Raises ValueError naming the option."""
    from osmosis_grpc.serve.security_options import access_of, check_trace, security_of
    from osmosis_grpc.settings import grpc_tracers

    options, client = settings.server, settings.client
    if not client.target:
        raise ValueError("name the agent server with --target HOST:PORT")
    if not options.unsafe_trace:
        check_trace(grpc_tracers())
    security = security_of(
        options.tokens, options.tls_cert, options.tls_key, options.tls_client_ca, insecure=options.insecure
    )
    try:
        security.check_host(options.host)
    except ValueError as error:
        raise ValueError(f"--host {error}") from None
    access = access_of(
        client.secret("token"),
        client.ca,
        client.cert,
        client.key,
        tls=client.tls,
        insecure=options.insecure,
        names=("--target-token", "--target"),
    )
    access.check_target(client.target)
    return security, access


async def _run(settings: "RolloutSettings", security: "Security", access: "Access") -> int:
    from osmosis_gateway.standalone import stand_alone
    from osmosis_grpc import __version__

    options, target = settings.server, settings.client.target or ""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with stand_alone(
        target,
        host=options.host,
        port=options.http_port,
        callback_port=options.callback_port,
        allow_targets=options.allow_target,
        settings=settings,
        security=security,
        access=access,
        callback_key=_callback_key(options.callback_key_file),
    ) as (http, back):
        record = {"http": http.address, "callback": back.address, "target": target}
        if options.json_records:
            typer.echo(json.dumps({"event": "ready", **record, "pid": os.getpid()}))
        else:
            typer.echo(f"HTTP {http.address} in front of {target}, called back at {back.address}")
        http.supervisor.add_listener(lambda error: stop.set())
        log.info("serving HTTP in front of %s", target, extra={**record, "version": __version__})
        await stop.wait()
        failure = http.supervisor.failure
        if failure is not None:
            log.error("the gateway has failed: %s", failure)
        log.info("stopping")
    log.info("stopped")
    return 1 if failure is not None else 0


def _callback_key(path: Path) -> str:
    """Return the secret in a file, which is made where there is none; a new one where that cannot be done."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_for_its_owner) as file:
            file.write(secrets.token_urlsafe(32))
        return check_token(path.read_text().strip())
    except (OSError, ValueError) as error:
        log.warning(
            "--callback-key-file %s cannot be used: %s; a gateway that is started again will not know the callbacks of "
            "this one",
            path,
            error.strerror if isinstance(error, OSError) else error,
        )
        return ""


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _usage(problem: str) -> NoReturn:
    typer.echo(f"osmosis_gateway: {problem}", err=True)
    raise typer.Exit(2)


gateway = command("gateway", "--target HOST:PORT [OPTIONS]", run)
"""The command."""

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    gateway.add_to(app, "osmosis_gateway")
    app()
