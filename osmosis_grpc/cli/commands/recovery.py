"""Commands that read a journal or a ledger after something went wrong."""

from typing import Annotated

import typer

from osmosis_grpc.cli.agent_sources import SourceOptions as AgentSources
from osmosis_grpc.cli.agent_sources import with_agent_sources
from osmosis_grpc.cli.commands.shared import Attempt, Json
from osmosis_grpc.cli.run_options import RunOptions, with_model_options
from osmosis_grpc.cli.source_options import SourceOptions, with_source

commands = typer.Typer()


@commands.command(short_help="Run recorded rollouts' agents again, and compare.")
@with_source
@with_agent_sources
def replay(
    rollout: Annotated[str | None, typer.Argument(metavar="[ROLLOUT]", help="The rollout's id.")] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Its agent loop; may be repeated.  [required]"),
    ] = None,
    until_turn: Annotated[
        int | None, typer.Option("--until-turn", metavar="N", min=1, help="Stop after N chats.")
    ] = None,
    attempt: Attempt = None,
    all_: Annotated[bool, typer.Option("--all", help="Every rollout, instead of ROLLOUT.")] = False,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="With --all: only these states, such as failed; repeatable."),
    ] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="With --all: only this agent loop.")] = "",
    group: Annotated[str, typer.Option("--group", metavar="ID", help="With --all: only this group.")] = "",
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="With --all: accepted in the last 10m, 2h, 1d.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="With --all: accepted longer ago than 10m, 2h, 1d.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="With --all: the N newest; 0 replays all.")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="With --all: the rollouts at once.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=604_800, help="With --all: of one rollout.")
    ] = 1800.0,
    *,
    sources: AgentSources,
    json: Json = False,
    source: SourceOptions,
) -> None:
    """Run recorded rollouts' agents again on the recorded replies, and compare what they ask, byte for byte.

    It asks no model and does not change the journal; a server may be using it. The agents' tools run again, with all
    their side effects. With --all, every rollout that the options select is replayed, and the first difference of each
    is printed.

    Exit codes: 0 no difference, 1 a difference, 2 there is nothing to replay, 130 Ctrl-C.
    """
    if not all_:
        from osmosis_grpc.cli.replay import run_replay

        raise typer.Exit(run_replay(rollout, module or [], sources, until_turn, attempt, source, json=json))
    from osmosis_grpc.cli.replay_all import ReplayAllOptions, run_replay_all
    from osmosis_grpc.records.reading.list_filter import ListOptions
    from osmosis_grpc.serve.startup import usage_error

    if rollout is not None or until_turn is not None or attempt is not None:
        usage_error("replay", "--all replays every rollout; leave out ROLLOUT, --attempt and --until-turn")
    chosen = ListOptions(states=tuple(state or ()), agent=agent, group=group, since=since, before=before, limit=limit)
    options = ReplayAllOptions(
        modules=tuple(module or ()), agents=sources, chosen=chosen, concurrency=concurrency, timeout=timeout, json=json
    )
    raise typer.Exit(run_replay_all(options, source))


@commands.command(short_help="Run a recorded rollout again from one of its chats on.")
@with_source
@with_agent_sources
@with_model_options
def fork(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout to fork from.")],
    at_chat: Annotated[
        int, typer.Option("--at-chat", metavar="N", min=1, help="The last chat whose recorded reply is used.")
    ],
    sample: Annotated[str, typer.Option("--sample", metavar="NAME", help="The sample of this chat.")] = "main",
    attempt: Attempt = None,
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Run its agent loop here; may be repeated."),
    ] = None,
    *,
    model: RunOptions,
    sources: AgentSources,
    json: Json = False,
    source: SourceOptions,
) -> None:
    """Run a recorded rollout again: its agent gets the recorded replies up to a chat, and live ones from there.

    With -m, the agent loop runs in this process, and the fork is written into the folder of a run. Without -m, --server
    names the running server that has the rollout, and the fork runs there. The agent loop must be replayable. Its tools
    run again, with all their side effects. The recorded rollout does not change.

    Exit codes: 0 COMPLETED, 1 the fork ended in another way, 2 it could not start, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.fork import ForkOptions, run_fork_command

    options = ForkOptions(
        rollout=rollout,
        at_chat=at_chat,
        sample=sample,
        attempt=attempt,
        modules=tuple(module or ()),
        model=model,
        agents=sources,
        json=json,
    )
    raise typer.Exit(run_fork_command(options, source))


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

    It checks the versions of packages, the extras, the state folder, the process that uses it, and the ports of the
    settings with those of all workers. Without options it also examines the journal of the state folder if there is
    one, and with --ledger alone no journal. It changes nothing, and a server or trainer may be using the files.

    Exit codes: 0 no problem, 1 a wrong version, a folder that cannot be written, or damage, 2 a file cannot be read.
    """
    from osmosis_grpc.cli.doctor import examine_all

    raise typer.Exit(examine_all(state_dir, ledger, json=json))


@commands.command(short_help="Copy a state folder or a ledger that is in use.")
def backup(
    target: Annotated[str, typer.Argument(metavar="DIR", help="The new folder of the copy.")],
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="A server's state folder. Default: ./.osmosis/state"),
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", metavar="FILE", help="A trainer's ledger; alone, only the ledger.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy a server's state folder, or a trainer's ledger, into a new folder. Server and trainer may be using them.

    The copy shows one moment. It is a state folder itself: a server that starts with it delivers each outcome that was
    not delivered at that moment, and continues its rollouts. It contains the credentials of running rollouts, so only
    you can read it. After the copy, each row is checked as doctor does.

    Exit codes: 0 copied, 1 copied with the damage of the original, 2 nothing was copied.
    """
    from osmosis_grpc.cli.backup import back_up

    raise typer.Exit(back_up(target, state_dir, ledger, json=json))
