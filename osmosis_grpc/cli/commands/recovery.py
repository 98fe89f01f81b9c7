"""Commands that read a journal or a ledger after something went wrong."""

import typer

from osmosis_grpc.cli.options import (
    AgentSources,
    Attempt,
    Json,
    SourceOptions,
    argument,
    option,
    with_agents,
    with_source,
)

commands = typer.Typer()


@commands.command(short_help="Run recorded rollouts' agents again, and compare.")
@with_source
@with_agents
def replay(
    rollout: str | None = argument("[ROLLOUT]", "The rollout's id."),
    module: list[str] | None = option("-m, --module MODULE:ATTR", "Its agent loop; may be repeated.  [required]"),
    until_turn: int | None = option("--until-turn N", "Stop after N chats.", min=1),
    attempt: Attempt = None,
    all_: bool = option("--all", "Every rollout, instead of ROLLOUT.", False),
    state: list[str] | None = option("--state STATE", "With --all: only these states, such as failed; repeatable."),
    agent: str = option("--agent NAME", "With --all: only this agent loop.", ""),
    group: str = option("--group ID", "With --all: only this group.", ""),
    since: str | None = option("--since TIME", "With --all: accepted in the last 10m, 2h, 1d."),
    before: str | None = option("--before TIME", "With --all: accepted longer ago than 10m, 2h, 1d."),
    limit: int = option("--limit N", "With --all: the N newest; 0 replays all.", 0, min=0),
    concurrency: int = option("--concurrency N", "With --all: the rollouts at once.", 4, min=1, max=1000),
    timeout: float = option("--timeout SECONDS", "With --all: of one rollout.", 1800.0, min=0.1, max=604_800),
    json: Json = False,
    *,
    agents: AgentSources,
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

        raise typer.Exit(run_replay(rollout, module or [], agents, until_turn, attempt, source, json=json))
    from osmosis_grpc.cli.replay_all import ReplayAllOptions, run_replay_all
    from osmosis_grpc.records.reading.list_filter import ListOptions
    from osmosis_grpc.serve.json_output import usage_error

    if rollout is not None or until_turn is not None or attempt is not None:
        usage_error("replay", "--all replays every rollout; leave out ROLLOUT, --attempt and --until-turn")
    chosen = ListOptions(states=tuple(state or ()), agent=agent, group=group, since=since, before=before, limit=limit)
    options = ReplayAllOptions(
        modules=tuple(module or ()), agents=agents, chosen=chosen, concurrency=concurrency, timeout=timeout, json=json
    )
    raise typer.Exit(run_replay_all(options, source))


@commands.command(short_help="Run a recorded rollout again from one of its chats on.")
@with_source
@with_agents
def fork(
    rollout: str = argument("ROLLOUT", "The rollout to fork from.", ...),
    at_chat: int = option("--at-chat N", "The last chat whose recorded reply is used.", ..., min=1),
    sample: str = option("--sample NAME", "The sample of this chat.", "main"),
    attempt: Attempt = None,
    module: list[str] | None = option("-m, --module MODULE:ATTR", "Run its agent loop here; may be repeated."),
    model: str = option("--model NAME", "What replies from there on, as in test --model.", "gpt-5-mini"),
    tokenizer: str | None = option("--tokenizer FOLDER", "tokenizer.json and chat template, for a model over gRPC."),
    base_url: str | None = option("--base-url URL", "An OpenAI-compatible server. Default: OPENAI_BASE_URL"),
    api_key: str | None = option(
        "--api-key KEY", "Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
    ),
    timeout: float = option("--timeout SECONDS", "The most time, with -m.", 1800.0, min=0.1, max=604_800),
    save_dir: str | None = option("--save-dir DIR", "The run's folder, with -m. Default: ./.osmosis/runs/TIME-ID"),
    json: Json = False,
    *,
    agents: AgentSources,
    source: SourceOptions,
) -> None:
    """Run a recorded rollout again: its agent gets the recorded replies up to a chat, and live ones from there.

    With -m, the agent loop runs in this process, and the fork is written into the folder of a run. Without -m, --server
    names the running server that has the rollout, and the fork runs there. The agent loop must be replayable. Its tools
    run again, with all their side effects. The recorded rollout does not change.

    Exit codes: 0 COMPLETED, 1 the fork ended in another way, 2 it could not start, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.command_options import RunOptions
    from osmosis_grpc.cli.fork import ForkOptions, run_fork_command

    options = ForkOptions(
        rollout=rollout,
        at_chat=at_chat,
        sample=sample,
        attempt=attempt,
        modules=tuple(module or ()),
        model=RunOptions(
            model=model, tokenizer=tokenizer, base_url=base_url, api_key=api_key, timeout=timeout, save_dir=save_dir
        ),
        agents=agents,
        json=json,
    )
    raise typer.Exit(run_fork_command(options, source))


@commands.command(short_help="Check this machine, a journal or a ledger.")
def doctor(
    state_dir: str | None = option("--state-dir DIR", "A server's state folder. Default: ./.osmosis/state"),
    ledger: str | None = option("--ledger FILE", "A trainer's ledger."),
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
    target: str = argument("DIR", "The new folder of the copy.", ...),
    state_dir: str | None = option("--state-dir DIR", "A server's state folder. Default: ./.osmosis/state"),
    ledger: str | None = option("--ledger FILE", "A trainer's ledger; alone, only the ledger."),
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
