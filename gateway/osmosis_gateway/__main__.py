"""python -m osmosis_gateway --target HOST:PORT -p 9000"""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import stamina
import typer
from pydantic import ValidationError

from osmosis_grpc.settings import RolloutSettings, get_settings, grpc_tracers, problems

if TYPE_CHECKING:
    from osmosis_grpc.link.credentials import Access
    from osmosis_grpc.link.security import Security


def main(
    target: Annotated[str, typer.Option("--target", metavar="HOST:PORT", help="The gRPC agent server.")],
    http_port: Annotated[
        int, typer.Option("-p", "--http-port", min=0, max=65535, help="HTTP port; 0 picks a free one.")
    ] = 9000,
    callback_port: Annotated[
        int, typer.Option("--callback-port", min=0, max=65535, help="gRPC port that the agent server calls back at.")
    ] = 50052,
    allow_target: Annotated[
        list[str] | None,
        typer.Option("--allow-target", metavar="HOST[:PORT]|CIDR", help="Trainer to allow; repeatable."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", "-H", help="Address to bind for HTTP; a public one needs TLS or --insecure.")
    ] = "127.0.0.1",
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option("--tls-client-ca", metavar="FILE", help="Callers need a certificate of this CA.")
    ] = None,
    token: Annotated[
        list[str] | None,
        typer.Option(
            "--token",
            metavar="[NAME=]SECRET",
            help="Bearer token that callers show; repeatable. "
            "OSMOSIS_ROLLOUT_SERVER_TOKEN holds tokens, too, one a line.",
        ),
    ] = None,
    target_token: Annotated[
        str | None,
        typer.Option(
            "--target-token",
            metavar="SECRET",
            help="Token to show to --target; OSMOSIS_ROLLOUT_CLIENT_TOKEN is another way.",
        ),
    ] = None,
    target_tls: Annotated[
        bool, typer.Option("--target-tls", help="Speak TLS with --target. Implied by the three options below.")
    ] = False,
    target_ca: Annotated[
        Path | None, typer.Option("--target-ca", metavar="FILE", help="CA of the agent server.")
    ] = None,
    target_cert: Annotated[
        Path | None, typer.Option("--target-cert", metavar="FILE", help="Certificate to show to it.")
    ] = None,
    target_key: Annotated[Path | None, typer.Option("--target-key", metavar="FILE", help="Its private key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Bind to a public address, and send tokens, without TLS.")
    ] = False,
    unsafe_trace: Annotated[
        bool, typer.Option("--unsafe-trace", help="Start although GRPC_TRACE may print bearer tokens.")
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error, on stderr.")] = "info",
    as_json: Annotated[
        bool, typer.Option("--json", help="Only JSON records on stdout; the first one says ready.")
    ] = False,
) -> None:
    """Serve the legacy HTTP contract in front of a gRPC agent server."""
    from osmosis_grpc.link.commandline import access_of, check_trace, security_of

    logging.basicConfig(level=log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    try:
        settings = get_settings()
    except ValidationError as error:
        _usage(problems(error))
    try:
        if not unsafe_trace:
            check_trace(grpc_tracers())
        security = security_of(
            [*settings.server.tokens, *(token or ())], tls_cert, tls_key, tls_client_ca, insecure=insecure
        )
        security.check_host(host)
        shown = target_token or (settings.client.token.get_secret_value() if settings.client.token else "")
        access = access_of(
            shown,
            target_ca,
            target_cert,
            target_key,
            tls=target_tls,
            insecure=insecure,
            names=("--target-token", "--target"),
        )
        access.check_target(target)
        ports = (host, http_port, callback_port)
        asyncio.run(_run(target, ports, allow_target or [], settings, security, access, as_json))
    except (OSError, ValueError) as error:
        _usage(f"{error}; -p and --callback-port choose other ports" if isinstance(error, OSError) else str(error))


async def _run(
    target: str, ports: tuple[str, int, int], allow: list[str], settings: RolloutSettings, security: "Security",
    access: "Access", as_json: bool,
) -> None:  # fmt: skip
    from osmosis_gateway.alone import stand_alone

    host, port, callback_port = ports
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with stand_alone(
        target, host=host, port=port, callback_port=callback_port, allow_targets=allow, settings=settings,
        security=security, access=access,
    ) as (http, back):  # fmt: skip
        if as_json:
            record = {"event": "ready", "http": http.address, "callback": back.address, "target": target}
            typer.echo(json.dumps(record | {"pid": os.getpid()}))
        else:
            typer.echo(f"HTTP {http.address} in front of {target}, called back at {back.address}")
        await stop.wait()


def _usage(problem: str) -> None:
    typer.echo(f"osmosis_gateway: {problem}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
