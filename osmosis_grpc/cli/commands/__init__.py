"""Declares the commands. A command imports its module only when it runs, so that --help is fast."""

from typing import Any

import typer
import typer.core

from osmosis_grpc import __version__
from osmosis_grpc.cli.commands import agents, conformance, control, datasets, look, recovery
from osmosis_grpc.serve.command import add_serve

GROUPS = {
    "Agents": ("init", "validate", "demo", "test", "eval"),
    "Servers": ("serve", "ping", "ctl", "doctor"),
    "Rollouts": ("list", "show", "events", "view"),
    "Records": ("query", "export", "replay"),
}
"""The groups of commands in --help. Other commands are only named below them."""


class _Grouped(typer.core.TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(120)) for name in names])
        shown = [name for names in GROUPS.values() for name in names]
        with formatter.section("More"):
            formatter.write_text(", ".join(name for name in self.commands if name not in shown))


app = typer.Typer(
    cls=_Grouped,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Remote agent rollouts over gRPC. `osmosis-grpc COMMAND --help` has the options of a command.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"osmosis-grpc {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Remote agent rollouts over gRPC. `osmosis-grpc COMMAND --help` has the options of a command."""


add_serve(app)
for group in (agents, datasets, look, control, recovery, conformance):
    app.add_typer(group.commands)
