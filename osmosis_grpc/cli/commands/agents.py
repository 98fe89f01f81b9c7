"""Commands for authors of agents."""

from typing import Annotated

import typer

from osmosis_grpc.cli.agent_sources import SourceOptions, with_agent_sources
from osmosis_grpc.cli.commands.shared import Json
from osmosis_grpc.cli.config_options import ConfigFile

commands = typer.Typer()

AGENT_TIMEOUT = 30.0
"""Default of validate's --timeout, in seconds."""


@commands.command(short_help="Write a project with an agent, a reward and a dataset.")
def init(
    folder: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make. Its name is the agent's name.")],
    template: Annotated[
        str, typer.Option("--template", metavar="KIND", help="minimal, tools, or openai for the openai package.")
    ] = "tools",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files in a folder that is not empty.")] = False,
    json: Json = False,
) -> None:
    """Write a project: an agent, its reward, a dataset, and the settings of its tools.

    Exit codes: 0 written, 2 a wrong option, or the folder cannot be used.
    """
    from osmosis_grpc.cli.init import run_init

    raise typer.Exit(run_init(folder, template, force=force, json=json))


@commands.command()
@with_agent_sources
def validate(
    unnamed: Annotated[list[str] | None, typer.Argument(metavar="-m MODULE:ATTR", hidden=True)] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="What to check; may be repeated.  [required]"),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also run a rollout of each, with a mock model that calls every tool.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long such a rollout may take.")
    ] = AGENT_TIMEOUT,
    *,
    sources: SourceOptions,
    json: Json = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", hidden=True)] = False,
) -> None:
    """Check agent loops and workflows. Exit codes: 0 without errors, 1 with errors, 2 with nothing to check."""
    from osmosis_grpc.cli.validate import validate_all

    raise typer.Exit(validate_all(unnamed or [], module or [], sources, run=run, timeout=timeout, json=json))


@commands.command(short_help="Run eight rollouts of an example or of your agent.")
def demo(
    module: Annotated[
        str | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Your agent loop instead of the calculator."),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", help="Your program, as in serve --command, instead of the calculator.")
    ] = None,
    config: ConfigFile = None,
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="Keep the rollouts in this folder.", show_default=False),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, max=128, help="Processes of the server, as in serve.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Eight JSON records instead of a table.")] = False,
) -> None:
    """Run eight rollouts of a calculator agent or of your own, with a mock for a model, over real sockets.

    Exit codes: 0 all completed, 1 some did not, or no server started, 2 a wrong option.
    """
    from osmosis_grpc.cli.demo import run_demo

    if module and command:
        typer.echo("demo: -m and --command name two agents; give one of them", err=True)
        raise typer.Exit(2)
    given = {"-m": module, "--command": command, "--config": config}
    agent = [word for name, value in given.items() if value for word in (name, value)]
    raise typer.Exit(run_demo(json, agent, state_dir, workers))
