"""Commands that show rollouts."""

from dataclasses import replace

import typer

from osmosis_grpc.cli.command_options import ExportChoices, with_choices
from osmosis_grpc.cli.options import (
    Attempt,
    FilterOptions,
    Json,
    SourceOptions,
    argument,
    option,
    with_filters,
    with_source,
    with_view_server,
)

commands = typer.Typer()


@commands.command("list", short_help="List rollouts, what they do now, and how they ended.")
@with_source
@with_filters
def list_(
    *,
    filters: FilterOptions,
    limit: int = option("--limit N", "Show at most N; 0 shows all.", 50, min=0),
    json: Json = False,
    source: SourceOptions,
) -> None:
    """List rollouts of a running server or of a state folder, with what they do now and how they ended.

    Exit codes: 0 listed, even if nothing matches, 2 a wrong option, or the server or the folder cannot be read.
    """
    from osmosis_grpc.cli.list import run_list

    raise typer.Exit(run_list(filters.with_limit(limit), source, json=json))


@commands.command(short_help="Show a rollout: conversations, tools, rewards, times, its end.")
@with_source
def show(
    rollout: str = argument("ROLLOUT", "The rollout's id.", ...),
    attempt: Attempt = None,
    turn: int | None = option("--turn N", "Only this turn, whole, with its tool results.", min=1),
    sample: str | None = option("--sample NAME", "Only this sample."),
    tokens: bool = option("--tokens", "Also the tokens of each sample.", False),
    reasoning: bool = option("--reasoning", "The reasoning of replies, not only its size.", False),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Show a rollout: its conversations, tool results, rewards and times, and the turn that failed last.

    A server may be running the rollout. With --json, the first record is the rollout, and each turn has a record.

    Exit codes: 0 shown, 1 shown and the rollout failed, 2 there is nothing to show.
    """
    from osmosis_grpc.cli.show import Wanted, run_show

    wanted = Wanted(turn=turn, sample=sample, tokens=tokens, reasoning=reasoning)
    raise typer.Exit(run_show(rollout, attempt, wanted, source, json=json))


@commands.command()
@with_source
def events(
    rollout: str | None = argument("[ROLLOUT]", "The rollout's id. Default with -f: all rollouts."),
    follow: bool = option("-f, --follow", "Also print new events as they come.", False),
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


@commands.command(short_help="Show rollouts in a browser.")
@with_view_server
@with_filters
def view(
    folder: str | None = argument(
        "[STATE_DIR]",
        "A state folder, or the folder of a run of test or eval; a server may be using it. "
        "Default: ./.osmosis/state, else the newest run, else the server 127.0.0.1:50051.",
    ),
    follow: str | None = option("--follow, --server HOST:PORT", "Ask this running server instead.", show_default=False),
    run: str | None = option("--run RUN", "The folder of a run of test or eval instead, or last."),
    demo: bool = option("--demo", "Run twelve rollouts with a mock model, and show them.", False),
    rollout: str | None = option("--rollout ROLLOUT", "Begin with this rollout; a failed one at the turn to look at."),
    host: str = option("--host HOST", "Listen on this host. Other machines need a token.", "127.0.0.1"),
    port: int | None = option("--port PORT", "Default: 7700 if it is free.", min=0, max=65535, show_default=False),
    token: str | None = option("--token SECRET", "What browsers have to show. Prefer the file."),
    token_file: str | None = option("--token-file FILE", "File that holds --token."),
    server_token_file: str | None = option("--server-token-file FILE", "File with the token to show to the server."),
    metrics: str | None = option(
        "--metrics HOST:PORT", "With --follow: also read the page /metrics of the server there.", show_default=False
    ),
    tokenizer: str | None = option(
        "--tokenizer FOLDER", "Show tokens as text: the folder of a model with tokenizer.json."
    ),
    open_browser: bool = option("--open", "Open the page in a browser.", False),
    export_to: str | None = option("--export OUT", "Write the pages to this new folder, and end.", show_default=False),
    single_file: bool = option("--single-file", "With --export: write one HTML file of at most 20 MB.", False),
    limit: int = option("--limit N", "Show or export at most N; 0 exports all.", 0, min=0),
    json: Json = False,
    *,
    filters: FilterOptions,
    source: SourceOptions,
) -> None:
    """Show rollouts in a browser until Ctrl-C: a live table, and each rollout with its turns, tools, times and failure.

    It needs the extra `view`. A folder is only read. The filters are those of the first table, or of the export.
    `osmosis-grpc docs viewer` has more.

    Exit codes: 0 stopped or exported, 1 the export is too large, 2 a wrong option, or there is nothing to show.
    """
    from osmosis_grpc.cli.view import ViewOptions, run_view

    given = ViewOptions(
        folder=folder,
        demo=demo,
        rollout=rollout,
        host=host,
        port=port,
        token=token,
        token_file=token_file,
        metrics=metrics,
        tokenizer=tokenizer,
        open=open_browser,
        listed=filters.with_limit(limit),
        export=export_to,
        single_file=single_file,
    )
    chosen = replace(source, server=follow, run=run, token_file=server_token_file)
    raise typer.Exit(run_view(given, chosen, json=json))


@commands.command(short_help="Ask a journal anything with SQL.")
def query(
    sql: str | None = argument("SQL", "One SELECT; - reads it from stdin. Without it, list the views."),
    file: str | None = option("--file FILE", "Read the SELECT from a file."),
    state_dir: str | None = option(
        "--state-dir DIR", "The folder of the journal; a server may be using it. Default: ./.osmosis/state"
    ),
    run: str | None = option("--run RUN", "The folder of a run of test or eval instead, or last."),
    server: str | None = option("--server", "", hidden=True),
    csv: bool = option("--csv", "Print CSV with a header.", False),
    limit: int | None = option(
        "--limit N", "Print at most N rows; 0 prints all. Default: 100 in a table, else all.", min=0
    ),
    timeout: float = option("--timeout SECONDS", "Give up after this many seconds.", 60.0, min=0.001),
    json: Json = False,
) -> None:
    """Ask a journal anything with SQL: which tool is slow, why rollouts failed, how rewards differ in a group.

    The views rollouts, chats, tools, samples, rewards, annotations, logs and events can be read, and nothing can be
    changed. `osmosis-grpc docs query` has examples. With --json, each row has a record.

    Exit codes: 0 answered, 2 a wrong query or option, or no answer in time, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.query import QueryOptions, run_query

    given = QueryOptions(
        sql=sql, file=file, state_dir=state_dir, run=run, server=server, csv=csv, limit=limit, timeout=timeout
    )
    raise typer.Exit(run_query(given, json=json))


@commands.command(short_help="Write rollouts for verl, or as Parquet, ATIF or messages.")
@with_choices
@with_source
def export(
    to: str = option(
        "--to FORMAT", "messages, atif, parquet, verl, verl-batch or verl-records.", ..., show_default=False
    ),
    output: str | None = option(
        "-o, --output PATH", "A file or folder, or - for stdout. Default: named after the format."
    ),
    overwrite: bool = option("--overwrite", "Replace an earlier export.", False),
    json: Json = False,
    *,
    choices: ExportChoices,
    source: SourceOptions,
) -> None:
    """Write recorded rollouts for verl, or as Parquet, ATIF v1.7 or OpenAI messages.

    A server may be using the folder. The output appears when it is complete. For verl and Parquet, a rollout that
    cannot be trained on ends the command with its name and the reason. `osmosis-grpc docs export` has examples.

    Exit codes: 0 written, 1 a rollout cannot be written, 2 a wrong option, or there is nothing to write, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.export import run_export

    raise typer.Exit(run_export(to, output, choices, source, overwrite=overwrite, json=json))


@commands.command()
def docs(
    topic: str | None = argument(
        "[TOPIC]", "A page such as query, or a heading such as AGENT_EXCEPTION. Without it, list the pages."
    ),
    json: Json = False,
) -> None:
    """Print a page of the documentation, or one section of a page.

    Exit codes: 0 printed, 2 there is no such page and no such heading.
    """
    from osmosis_grpc.cli.docs import run_docs

    raise typer.Exit(run_docs(topic, json=json))
