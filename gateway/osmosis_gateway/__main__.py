"""python -m osmosis_gateway --target HOST:PORT -p 9000

osmosis_grpc.settings declares the options. Functions import the heavy modules, so that --help is fast.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from osmosis_grpc.network.bearer_tokens import check_token
from osmosis_grpc.serve import entrypoint
from osmosis_grpc.serve.options import (
    credentials_to_show,
    naming,
    security_for_callers,
    usage_errors,
    warn_about_settings,
)
from osmosis_grpc.settings.command_line import Line, OptionError
from osmosis_grpc.settings.typer_command import add_command

if TYPE_CHECKING:
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.network.server_security import ServerSecurity
    from osmosis_grpc.settings.settings import RolloutSettings

NAME = "osmosis_gateway"
log = logging.getLogger(NAME)


def run(line: Line) -> None:
    """Serve the legacy HTTP contract in front of a gRPC agent server."""
    from osmosis_grpc.settings import logs
    from osmosis_grpc.settings.process_environment import forget_secrets
    from osmosis_grpc.settings.settings import command_settings

    with usage_errors(NAME, line):
        settings = command_settings(line)
    forget_secrets()
    ports_taken = "{error}; {http_port} and {callback_port} choose other ports"
    with (
        logs.configured(settings.server.log_level),
        usage_errors(NAME, line, settings),
        usage_errors(NAME, line, settings, OSError, ports_taken),
    ):
        warn_about_settings(line, settings)
        security, credentials = _checked(line, settings)
        code = asyncio.run(_run(settings, security, credentials))
    if code:
        raise typer.Exit(code)


def _checked(line: Line, settings: "RolloutSettings") -> "tuple[ServerSecurity, Credentials]":
    """Return the security for callers and the credentials for the agent server. Raises OptionError."""
    from osmosis_grpc.network.target_policy import TargetPolicy

    options, client = settings.server, settings.client
    if not client.target:
        raise OptionError("name the agent server with {client_target} HOST:PORT")
    security = security_for_callers(options, line)
    credentials = credentials_to_show(
        client.secret("token"),
        client.ca,
        client.cert,
        client.key,
        tls=client.tls,
        insecure=options.insecure,
        names=("{client_token}", "{client_ca}", "{client_cert}", "{client_key}"),
    )
    with naming("{client_target}: {problem}"):
        credentials.check_target(client.target)
    with naming("{allow_target}: {problem}"):
        TargetPolicy(loopback=True, allow=options.allow_target)
    return security, credentials


async def _run(settings: "RolloutSettings", security: "ServerSecurity", credentials: "Credentials") -> int:
    from osmosis_gateway.standalone import serve_standalone
    from osmosis_grpc import __version__

    options, target = settings.server, settings.client.target or ""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_standalone(
        target,
        host=options.host,
        port=options.http_port,
        callback_port=options.callback_port,
        allow_targets=options.allow_target,
        settings=settings,
        security=security,
        credentials=credentials,
        callback_key=_callback_key(options.callback_key_file),
    ) as (http, back):
        record = {"http": http.address, "callback": back.address, "target": target}
        if options.json_records:
            typer.echo(json.dumps({"event": "ready", **record, "pid": os.getpid()}))
        else:
            typer.echo(f"HTTP {http.address} in front of {target}, called back at {back.address}")
        supervisors = (http.supervisor, back.supervisor)
        for supervisor in supervisors:
            supervisor.add_listener(lambda error: stop.set())
        log.info("serving HTTP in front of %s", target, extra={**record, "version": __version__})
        await stop.wait()
        failure = next((supervisor.failure for supervisor in supervisors if supervisor.failure is not None), None)
        if failure is not None:
            log.error("the gateway has failed: %r; it stops with exit code 1", failure)
        log.info("stopping")
    log.info("stopped")
    return 1 if failure is not None else 0


def _callback_key(path: Path) -> str:
    """Return the secret in a file. Create a missing file with a new secret. Return "" if the file cannot be used."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with contextlib.suppress(FileExistsError), open(os.open(path, flags, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        return check_token(path.read_text().strip())
    except (OSError, ValueError) as error:
        log.warning(
            "--callback-key-file %s cannot be used: %s; after a restart, the gateway will refuse callbacks for the "
            "rollouts that it starts now; name a file that can be written",
            path,
            error.strerror if isinstance(error, OSError) else error,
        )
        return ""


def add_gateway(app: typer.Typer, name: str) -> None:
    """Add the gateway's command to an application."""
    add_command(app, name, "--target HOST:PORT [OPTIONS]", run, of="gateway")


if __name__ == "__main__":
    sys.exit(entrypoint.run(lambda: entrypoint.single(NAME, add_gateway)))
