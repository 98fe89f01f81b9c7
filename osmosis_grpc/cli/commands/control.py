"""Commands that control a running server."""

import typer

from osmosis_grpc.cli.command_options import CancelOptions, with_cancel
from osmosis_grpc.cli.options import Json, SourceOptions, argument, option, with_server

commands = typer.Typer()

PING_TIMEOUT = 5.0
"""Default of ping's --timeout, in seconds."""


@commands.command(short_help="Say whether a server is ready.")
@with_server
def ping(
    target: str | None = argument("[HOST:PORT]", "The server, as with --server. Default: 127.0.0.1:50051."),
    timeout: float = option("--timeout SECONDS", "How long an answer may take.", PING_TIMEOUT, min=0.001),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Print whether a server is ready, its version, limits and load, and how far its clock is off.

    Exit codes: 0 it accepts rollouts, 1 it does not, 2 it cannot be reached, or a wrong option.
    """
    from osmosis_grpc.cli.ping import run_ping

    raise typer.Exit(run_ping(target, timeout, source, json=json))


@commands.command(short_help="Call a method of the protocol, and print its reply as JSON.")
@with_server
def call(
    method: str | None = argument("METHOD", "Such as GetServerInfo. Without it, the methods are listed."),
    data: str = option("--data JSON|@FILE|-", "The request; - reads stdin.", "{}"),
    timeout: float | None = option("--timeout SECONDS", "Default: 30. A stream has no limit.", min=0.001),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Call a method of the protocol, and print its reply as JSON. A stream prints one line for each reply.

    The server is 127.0.0.1:50051, unless --server names another one.

    Exit codes: 0 the replies are printed, 1 the call is refused, 2 a wrong option, or the server cannot be reached.
    """
    from osmosis_grpc.cli.call import run_call

    raise typer.Exit(run_call(method, data, timeout, source, json=json))


ctl = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, short_help="Control a running server: cancel, drain, configuration."
)
commands.add_typer(ctl, name="ctl")


@ctl.callback()
def top() -> None:
    """Control a running server: cancel its rollouts, drain it, show its configuration.

    The commands call the server 127.0.0.1:50051, unless --server names another one.
    """


@ctl.command()
@with_server
@with_cancel
def cancel(*, options: CancelOptions, json: Json = False, source: SourceOptions) -> None:
    """Cancel rollouts. They end CANCELLED, and free their slots.

    Exit codes: 0 they are cancelled or had already ended, 1 the server does not know one of them, 2 a wrong option,
    or the server cannot be reached.
    """
    from osmosis_grpc.cli.ctl import run_cancel

    raise typer.Exit(run_cancel(options, source, json=json))


@ctl.command(short_help="Let a server finish its work and accept no new rollouts.")
@with_server
def drain(
    timeout: float | None = option(
        "--timeout SECONDS", "Wait at most this long; 0 does not wait. Default: no limit.", min=0
    ),
    undo: bool = option("--undo", "End a drain: the server accepts rollouts again.", False),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Let a server finish its rollouts and accept no new ones, and wait until it has no work.

    This needs an administrator's token (serve --admin-token-file), or no token if the server has none and runs on this
    machine. The drained server keeps running until SIGTERM stops it. Ctrl-C does not end the drain.

    Exit codes: 0 no work is left, 1 work is left after --timeout, 2 a wrong option, or the server refuses or cannot
    be reached, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.ctl import run_drain

    raise typer.Exit(run_drain(timeout, source, undo=undo, json=json))


@ctl.command(short_help="Show the configuration that a server uses.")
@with_server
def config(json: Json = False, *, source: SourceOptions) -> None:
    """Show a server's effective configuration: agent loops, features, load, limits and times. No secrets are shown.

    Exit codes: 0 shown, 2 a wrong option, or the server cannot be reached.
    """
    from osmosis_grpc.cli.ctl import run_config

    raise typer.Exit(run_config(source, json=json))
