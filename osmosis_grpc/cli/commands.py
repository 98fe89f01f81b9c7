"""Declares the commands. A command imports its module only when it runs, so that --help is fast."""

from typing import Annotated

import typer

from osmosis_grpc import __version__
from osmosis_grpc.cli.source_options import SourceOptions, with_source
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

Attempt = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="Which attempt. Default: the newest.")
]
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


@app.command("test")
def run_dataset(
    module: Annotated[
        str | None, typer.Option("-m", "--module", "--agent", metavar="MODULE:ATTR", help="The agent loop.  [required]")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("-d", "--dataset", metavar="FILE", help=".json, .jsonl, .csv or .parquet.  [required]")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="mock:echo, mock:tools, mock:script=FILE, litellm:NAME, or a name of the server at --base-url.",
        ),
    ] = "gpt-5-mini",
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server. Default: OPENAI_BASE_URL"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", help="Its key. Others see a command line: prefer the variable OPENAI_API_KEY."
        ),
    ] = None,
    max_turns: Annotated[int, typer.Option("--max-turns", metavar="N", min=1, help="The most turns of a row.")] = 10,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", help="The sampling temperature.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="The most tokens of a reply.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Run at most N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Skip the first N rows.")] = 0,
    row: Annotated[
        int | None, typer.Option("--row", metavar="N", min=0, help="Run only row N, from 0. With -i, begin there.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Stop before each chat, and ask what to do.")
    ] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="COLUMN=FIELD", help="What a column is, as question=user_prompt; repeatable."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=10_000, help="Rows at once.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=604_800, help="The most time of a row.")
    ] = 1800.0,
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="P/R", help="Dollars for a million prompt and reply tokens, as 0.25/2."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the results as JSON.")
    ] = None,
    save_dir: Annotated[
        str | None, typer.Option("--save-dir", metavar="DIR", help="The run's folder. Default: ./.osmosis/runs/TIME-ID")
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="RUN", help="Reply from a run's folder, or from the `last` run. No model."),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the summary.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="A line for each row, also on a terminal.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show each row's conversation and the log.")] = False,
    json: Json = False,
) -> None:
    """Run an agent loop over a dataset with a model, and keep the run in a folder.

    The model is asked once before the first row. Exit codes: 0 all rows completed, 1 some rows failed, 2 usage.
    """
    from osmosis_grpc.cli.test import Options, run_test

    options = Options(
        module=module,
        dataset=dataset,
        model=model,
        api_key=api_key,
        base_url=base_url,
        max_turns=max_turns,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        offset=offset,
        row=row,
        interactive=interactive,
        output=output,
        save_dir=save_dir,
        replay=replay,
        columns=tuple(columns or ()),
        price=price,
        concurrency=concurrency,
        timeout=timeout,
        quiet=quiet,
        plain=plain,
        debug=debug,
        json=json,
    )
    raise typer.Exit(run_test(options))


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
    attempt: Attempt = None,
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
@with_source
def show(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="The rollout's id.")],
    attempt: Attempt = None,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", min=1, help="Only this turn, whole, with its tool results.")
    ] = None,
    sample: Annotated[str | None, typer.Option("--sample", metavar="NAME", help="Only this sample.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also the tokens of each sample.")] = False,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="The reasoning of replies, not only its size.")
    ] = False,
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Show a rollout: its conversations, tool results, rewards and times, and the turn that failed last.

    A server may be running the rollout. With --json, the first record is the rollout, and each turn has a record.

    Exit codes: 0 shown, 1 shown and the rollout failed, 2 there is nothing to show.
    """
    from osmosis_grpc.cli.rollout_text import Wanted
    from osmosis_grpc.cli.show import run_show

    wanted = Wanted(turn=turn, sample=sample, tokens=tokens, reasoning=reasoning)
    raise typer.Exit(run_show(rollout, attempt, wanted, source, json=json))


@app.command()
@with_source
def events(
    rollout: Annotated[
        str | None, typer.Argument(metavar="[ROLLOUT]", help="The rollout's id. Default with -f: all rollouts.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Also print new events as they come.")] = False,
    attempt: Attempt = None,
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Print the events of a rollout, one line each. Times are in UTC.

    With -f and a rollout, the command ends with the rollout's last event. Without a rollout, it prints the new events
    of all rollouts until Ctrl-C.

    Exit codes: 0 printed, 2 there is nothing to print, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.events import run_events

    raise typer.Exit(run_events(rollout, attempt, source, follow=follow, json=json))


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


@app.command("list")
@with_source
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only these states, such as running or failed; may be repeated."),
    ] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only this agent loop.")] = "",
    group: Annotated[str, typer.Option("--group", metavar="ID", help="Only this group.")] = "",
    reason: Annotated[
        list[str] | None,
        typer.Option(
            "--reason", metavar="REASON", help="Only failures for these reasons, such as AGENT_EXCEPTION; repeatable."
        ),
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", metavar="X", help="Only rewards of at least this.")
    ] = None,
    max_reward: Annotated[
        float | None, typer.Option("--max-reward", metavar="X", help="Only rewards of at most this.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only those accepted in the last 10m, 2h, 1d.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Only those accepted before the last 10m, 2h, 1d.")
    ] = None,
    stalled: Annotated[
        str | None,
        typer.Option("--stalled", metavar="TIME", help="Only unfinished ones without progress for 5s, 10m or so."),
    ] = None,
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="Only those whose outcome has not reached the trainer.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Show at most N; 0 shows all.")] = 50,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first. Default: the newest first.")] = False,
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """List rollouts of a running server or of a state folder, with what they do now and how they ended.

    Exit codes: 0 listed, even if nothing matches, 2 a wrong option, or the server or the folder cannot be read.
    """
    from osmosis_grpc.cli.list import ListOptions, run_list

    given = ListOptions(
        states=tuple(state or ()),
        agent=agent,
        group=group,
        reasons=tuple(reason or ()),
        min_reward=min_reward,
        max_reward=max_reward,
        since=since,
        before=before,
        stalled=stalled,
        undelivered=undelivered,
        limit=limit,
        oldest=oldest,
    )
    raise typer.Exit(run_list(given, source, json=json))
