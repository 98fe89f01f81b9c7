"""Commands that read a journal or a ledger after something went wrong."""

from typing import Annotated

import typer

from osmosis_grpc.cli.commands.shared import Attempt, Json
from osmosis_grpc.cli.config_options import ConfigFile, GraderClass, GraderConfig, WorkflowConfig

commands = typer.Typer()


@commands.command(short_help="Run a recorded rollout's agent again, and compare.")
def replay(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's id.")],
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Its agent loop; may be repeated.  [required]"),
    ] = None,
    until_turn: Annotated[
        int | None, typer.Option("--until-turn", metavar="N", min=1, help="Stop after N chats.")
    ] = None,
    attempt: Attempt = None,
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", metavar="DIR", help="Where the journal is. Default: ./.osmosis/state")
    ] = None,
    config: ConfigFile = None,
    workflow_config: WorkflowConfig = None,
    grader_config: GraderConfig = None,
    grader: GraderClass = None,
    json: Json = False,
) -> None:
    """Run a recorded rollout's agent again on its recorded replies, and compare what it asks, byte for byte.

    It asks no model and does not change the journal; a server may be using it. The agent's tools run again, with all
    their side effects.

    Exit codes: 0 no difference, 1 a difference, 2 there is nothing to replay.
    """
    from osmosis_grpc.cli.agent_sources import SourceOptions
    from osmosis_grpc.cli.replay import run_replay

    given = SourceOptions(
        config=config,
        workflow_config=tuple(workflow_config or ()),
        grader_config=tuple(grader_config or ()),
        grader=grader,
    )
    raise typer.Exit(run_replay(rollout, module or [], given, until_turn, attempt, state_dir, json=json))


@commands.command(short_help="Check this machine, a journal or a ledger.")
def doctor(
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="A server's state folder. Default: ./.osmosis/state"),
    ] = None,
    ledger: Annotated[str | None, typer.Option("--ledger", metavar="FILE", help="A trainer's ledger.")] = None,
    json: Json = False,
) -> None:
    """Check this machine, and report the damage in a journal or a ledger.

    It checks the versions of packages, the extras, the state folder and the ports. Without options it also examines
    the journal of the state folder if there is one, and with --ledger alone no journal. It changes nothing, and a
    server or trainer may be using the files.

    Exit codes: 0 no problem, 1 a wrong version, a folder that cannot be written, or damage, 2 a file cannot be read.
    """
    from osmosis_grpc.cli.doctor import examine_all

    raise typer.Exit(examine_all(state_dir, ledger, json=json))
