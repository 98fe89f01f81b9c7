"""Declares the commands. A command imports its module only when it runs, so that --help is fast."""

from typing import Annotated

import typer

from osmosis_grpc import __version__
from osmosis_grpc.serve.command import serve

AGENT_TIMEOUT = 30.0
"""Default of validate's --timeout, in seconds."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Remote agent rollouts over gRPC.",
)

Json = Annotated[bool, typer.Option("--json", help="Only JSON records on stdout.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"osmosis-grpc {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Remote agent rollouts over gRPC."""


serve.add_to(app, "serve")


@app.command()
def validate(
    unnamed: Annotated[list[str] | None, typer.Argument(metavar="-m MODULE:ATTR", hidden=True)] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Agent loop to check; may be repeated.  [required]"),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also run a rollout of each, with a mock model that calls every tool.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long such a rollout may take.")
    ] = AGENT_TIMEOUT,
    json: Json = False,
) -> None:
    """Check agent loops. Exit codes: 0 without errors, 1 with errors, 2 when there is nothing to check."""
    from osmosis_grpc.cli.validate import validate_all

    raise typer.Exit(validate_all(unnamed or [], module or [], run=run, timeout=timeout, json=json))


@app.command()
def demo(
    module: Annotated[
        str | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Your agent loop instead of the calculator."),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", help="Your program, as in serve --command, instead of the calculator.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Eight JSON records instead of a table.")] = False,
) -> None:
    """Run eight rollouts of a calculator agent or of your own, with a mock for a model, over real sockets."""
    from osmosis_grpc.cli.demo import run_demo

    if module and command:
        typer.echo("demo: -m and --command name two agents; give one of them", err=True)
        raise typer.Exit(2)
    given = {"-m": module, "--command": command}
    raise typer.Exit(run_demo(json, [word for name, value in given.items() if value for word in (name, value)]))


@app.command()
def replay(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's id.")],
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Its agent loop; may be repeated.  [required]"),
    ] = None,
    until_turn: Annotated[
        int | None, typer.Option("--until-turn", metavar="N", min=1, help="Stop after N chats.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Which attempt. Default: the newest.")
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", metavar="DIR", help="Where the journal is. Default: ./.osmosis/state")
    ] = None,
    json: Json = False,
) -> None:
    """Run a recorded rollout's agent again on its recorded replies, and compare what it asks, byte for byte.

    It asks no model and does not change the journal; a server may be using it. The agent's tools run again, with all
    their side effects.

    Exit codes: 0 no difference, 1 a difference, 2 there is nothing to replay.
    """
    from osmosis_grpc.cli.replay import run_replay

    raise typer.Exit(run_replay(rollout, module or [], until_turn, attempt, state_dir, json=json))


@app.command()
def doctor(
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="A server's state folder. Default: ./.osmosis/state"),
    ] = None,
    ledger: Annotated[str | None, typer.Option("--ledger", metavar="FILE", help="A trainer's ledger.")] = None,
    json: Json = False,
) -> None:
    """Report the damage in a journal or a ledger: the rollouts, the rows, and what is wrong with them.

    It changes nothing, and a server or trainer may be using the file. With --ledger alone it examines no journal.

    Exit codes: 0 no damage, 1 damage, 2 a file cannot be read.
    """
    from osmosis_grpc.cli.doctor import examine_all

    raise typer.Exit(examine_all(state_dir, ledger, json=json))
