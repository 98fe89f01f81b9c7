"""Commands for authors of agents."""

import typer

from osmosis_grpc.cli.options import AgentSources, Json, argument, option, with_agents

commands = typer.Typer()

AGENT_TIMEOUT = 30.0
"""Default of validate's --timeout, in seconds."""


@commands.command(short_help="Write a project with an agent, a reward and a dataset.")
def init(
    folder: str = argument("NAME", "The folder to make. Its name is the agent's name.", ...),
    template: str = option("--template KIND", "minimal, tools, or openai for the openai package.", "tools"),
    env: str | None = option("--env KIND:NAME", "An environment of another library, instead of an agent of yours."),
    force: bool = option("--force", "Overwrite the files in a folder that is not empty.", False),
    json: Json = False,
) -> None:
    """Write a project: an agent with its reward and a dataset, or a trainer for an environment.

    Exit codes: 0 written, 2 a wrong option, or the folder cannot be used.
    """
    from osmosis_grpc.cli.init import run_init

    raise typer.Exit(run_init(folder, template, env, force=force, json=json))


@commands.command(short_help="Change the imports of programs for the Osmosis SDK.")
def migrate(
    folder: str = argument("FOLDER", "The folder of the program, or one file.", ...),
    check: bool = option("--check", "Only print, and change nothing.", False),
    json: Json = False,
) -> None:
    """Change the import lines of a program for the Osmosis SDK or the Agentic Rollout Library.

    It prints what you have to change by hand, with file and line. Keep the folder in git, so that you can see the
    changes and undo them.

    Exit codes: 0 nothing is left, 1 something is left, or with --check would change, 2 there is no such folder.
    """
    from osmosis_grpc.cli.migrate import run_migrate

    raise typer.Exit(run_migrate(folder, check=check, json=json))


@commands.command()
@with_agents
def validate(
    *,
    unnamed: list[str] | None = argument("-m MODULE:ATTR", "", hidden=True),
    module: list[str] | None = option(
        "-m, --module MODULE:ATTR", "The agent loop to check; may be repeated.  [required]"
    ),
    run: bool = option("--run", "Also run a rollout of each, with a mock model that calls every tool.", False),
    timeout: float = option("--timeout SECONDS", "How long such a rollout may take.", AGENT_TIMEOUT),
    agents: AgentSources,
    json: Json = False,
    verbose: bool = option("-v, --verbose", "", False, hidden=True),
) -> None:
    """Check agent loops and workflows. Exit codes: 0 without errors, 1 with errors, 2 with nothing to check."""
    from osmosis_grpc.cli.validate import validate_all

    raise typer.Exit(validate_all(unnamed or [], module or [], agents, run=run, timeout=timeout, json=json))


@commands.command(short_help="Run eight rollouts of an example or of your agent.")
def demo(
    module: str | None = option("-m, --module MODULE:ATTR", "Your agent loop instead of the calculator."),
    command: str | None = option("--command", "Your program, as in serve --command, instead of the calculator."),
    config: str | None = option("--config FILE", "TOML file with [workflow.config] and [grader.config]."),
    state_dir: str | None = option("--state-dir DIR", "Keep the rollouts in this folder.", show_default=False),
    workers: int = option("--workers N", "Processes of the server, as in serve.", 1, min=1, max=128),
    json: bool = option("--json", "Eight JSON records instead of a table.", False),
) -> None:
    """Run eight rollouts of a calculator agent or of your own agent, with a mock model, over real sockets.

    Exit codes: 0 all completed, 1 some did not, or no server started, 2 a wrong option.
    """
    from osmosis_grpc.cli.demo import run_demo

    if module and command:
        typer.echo("demo: -m and --command name two agents; give one of them", err=True)
        raise typer.Exit(2)
    given = {"-m": module, "--command": command, "--config": config}
    agent = [word for name, value in given.items() if value for word in (name, value)]
    raise typer.Exit(run_demo(json, agent, state_dir, workers))
