"""Declares the commands. A command imports its module only when it runs, so that --help is fast."""

import typer

from osmosis_grpc import __version__
from osmosis_grpc.cli.commands import agents, conformance, control, datasets, look, recovery
from osmosis_grpc.serve.command import add_serve

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Remote agent rollouts over gRPC.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"osmosis-grpc {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Remote agent rollouts over gRPC."""


add_serve(app)
for group in (agents, datasets, look, control, recovery, conformance):  # in the order of --help
    app.add_typer(group.commands)
