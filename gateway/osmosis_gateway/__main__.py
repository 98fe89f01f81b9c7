"""python -m osmosis_gateway --target HOST:PORT -p 9000"""

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Annotated

import stamina
import typer
from pydantic import ValidationError

from osmosis_grpc.settings import RolloutSettings, get_settings, problems


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
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error, on stderr.")] = "info",
    as_json: Annotated[
        bool, typer.Option("--json", help="Only JSON records on stdout; the first one says ready.")
    ] = False,
) -> None:
    """Serve the legacy HTTP contract in front of a gRPC agent server."""
    logging.basicConfig(level=log_level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    stamina.instrumentation.set_on_retry_hooks([stamina.instrumentation.LoggingOnRetryHook])
    try:
        settings = get_settings()
    except ValidationError as error:
        _usage(problems(error))
    try:
        asyncio.run(_run(target, http_port, callback_port, allow_target or [], settings, as_json))
    except (OSError, ValueError) as error:
        _usage(f"{error}; -p and --callback-port choose other ports" if isinstance(error, OSError) else str(error))


async def _run(
    target: str, port: int, callback_port: int, allow: list[str], settings: RolloutSettings, as_json: bool
) -> None:
    from osmosis_gateway.alone import stand_alone

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with stand_alone(
        target, port=port, callback_port=callback_port, allow_targets=allow, settings=settings
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
