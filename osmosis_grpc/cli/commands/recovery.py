"""Commands that read a journal or a ledger after something went wrong."""

import typer

from osmosis_grpc.cli.command_options import ForkOptions, ReplayOptions, with_fork, with_replay
from osmosis_grpc.cli.options import AgentSources, Json, SourceOptions, argument, option, with_agents, with_source

commands = typer.Typer()


@commands.command(short_help="Run recorded rollouts' agents again, and compare.")
@with_source
@with_agents
@with_replay
def replay(*, options: ReplayOptions, json: Json = False, agents: AgentSources, source: SourceOptions) -> None:
    """Run the agents of recorded rollouts again on the recorded replies, and compare their chats byte for byte.

    No model is asked, and the journal does not change; a server may be using it. The agents' tools run again, with all
    their side effects. With --all, every rollout that the options select is replayed, and the first difference of each
    is printed.

    Exit codes: 0 no difference, 1 a difference, 2 there is nothing to replay, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.replay import run_replay

    raise typer.Exit(run_replay(options, agents, source, json=json))


@commands.command(short_help="Run a recorded rollout again from one of its chats on.")
@with_source
@with_agents
@with_fork
def fork(*, options: ForkOptions, json: Json = False, agents: AgentSources, source: SourceOptions) -> None:
    """Run a recorded rollout again: its agent gets the recorded replies up to a chat, and live replies after it.

    With -m, the agent loop runs in this process, and the fork is written into the folder of a run. Without -m, --from
    names the running server that has the rollout, and the fork runs there. The agent loop must be replayable. Its tools
    run again, with all their side effects. The recorded rollout does not change.

    Exit codes: 0 COMPLETED, 1 the fork ended in another way, 2 it could not start, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.fork import run_fork_command

    raise typer.Exit(run_fork_command(options, agents, source, json=json))


@commands.command(short_help="Check this machine, a journal or a ledger.")
def doctor(
    state_dir: str | None = option("--state-dir DIR", "A server's state folder. Default: ./.osmosis/state"),
    ledger: str | None = option("--ledger FILE", "A trainer's ledger."),
    json: Json = False,
) -> None:
    """Check this machine, and report the damage in a journal or a ledger.

    It checks the versions of packages, the extras, the state folder, the process that uses it, and the ports in the
    settings, including those of all workers. It also examines the journal of the state folder, if there is one; with
    only --ledger, it examines only the ledger. It changes nothing. A server or trainer may be using the files.

    Exit codes: 0 no problem, 1 a wrong version, a folder that cannot be written, or damage, 2 a file cannot be read.
    """
    from osmosis_grpc.cli.doctor import examine_all

    raise typer.Exit(examine_all(state_dir, ledger, json=json))


@commands.command(short_help="Copy a state folder or a ledger that is in use.")
def backup(
    target: str = argument("DIR", "The new folder of the copy.", ...),
    state_dir: str | None = option("--state-dir DIR", "A server's state folder. Default: ./.osmosis/state"),
    ledger: str | None = option("--ledger FILE", "A trainer's ledger; alone, only the ledger."),
    json: Json = False,
) -> None:
    """Copy a server's state folder, or a trainer's ledger, into a new folder. Server and trainer may be using them.

    The copy is a state folder as of one moment. A server that starts with it delivers each outcome that was undelivered
    at that moment, and continues its rollouts. It contains the credentials of running rollouts, so only you can read
    it. Finally, each row of the copy is checked as doctor does.

    Exit codes: 0 copied, 1 copied with the damage of the original, 2 nothing was copied.
    """
    from osmosis_grpc.cli.backup import back_up

    raise typer.Exit(back_up(target, state_dir, ledger, json=json))
