"""Commands that show rollouts."""

import typer

from osmosis_grpc.cli.command_options import (
    ExportChoices,
    QueryOptions,
    ViewOptions,
    with_choices,
    with_query,
    with_view,
)
from osmosis_grpc.cli.options import (
    NAME,
    Attempt,
    FilterOptions,
    Json,
    SourceOptions,
    argument,
    option,
    with_filters,
    with_source,
    with_view_source,
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
    """List rollouts of a running server or of a state folder: what they are doing now, or how they ended.

    Exit codes: 0 listed, even if nothing matches, 2 a wrong option, or the server or the folder cannot be read.
    """
    from osmosis_grpc.cli.list import run_list

    raise typer.Exit(run_list(filters.with_limit(limit), source, json=json))


@commands.command(short_help="Show a rollout: conversations, tools, rewards, times, its end.")
@with_source
def show(
    rollout: str = argument("ROLLOUT", NAME, ...),
    attempt: Attempt = None,
    turn: int | None = option("--turn N", "Only this turn, uncut, with its tool results.", min=1),
    sample: str | None = option("--sample NAME", "Only this sample."),
    tokens: bool = option("--tokens", "Also the tokens of each sample.", False),
    reasoning: bool = option("--reasoning", "The reasoning of replies, not only its size.", False),
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Show a rollout: its conversations, tool results, rewards and times, and at the end the turn that failed.

    A server may be running the rollout. With --json, the first record is the rollout, and each turn has a record.

    Exit codes: 0 shown, 1 shown and the rollout failed, 2 there is nothing to show.
    """
    from osmosis_grpc.cli.show import Wanted, run_show

    wanted = Wanted(turn=turn, sample=sample, tokens=tokens, reasoning=reasoning)
    raise typer.Exit(run_show(rollout, attempt, wanted, source, json=json))


@commands.command()
@with_source
def events(
    rollout: str | None = argument("[ROLLOUT]", f"{NAME} Default with -f: all rollouts."),
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
@with_view_source
@with_filters
@with_view
def view(*, options: ViewOptions, json: Json = False, filters: FilterOptions, source: SourceOptions) -> None:
    """Show rollouts in a browser until Ctrl-C: a live table, and each rollout with its turns, tools, times and failure.

    It needs the extra `view`, and never changes a folder. The filters apply to the first table, or to the export. For
    more, see `osmosis-grpc docs viewer`.

    Exit codes: 0 stopped or exported, 1 the export is too large, 2 a wrong option, or there is nothing to show.
    """
    from osmosis_grpc.cli.view import run_view

    raise typer.Exit(run_view(options, filters.with_limit(options.limit), source, json=json))


@commands.command(short_help="Ask a journal anything with SQL.")
@with_query
def query(*, options: QueryOptions, json: Json = False) -> None:
    """Ask a journal anything with SQL: which tool is slow, why rollouts failed, how rewards differ in a group.

    You can read the views rollouts, chats, tools, samples, rewards, annotations, logs and events, but change nothing.
    `osmosis-grpc docs query` has examples. With --json, each row is a record.

    Exit codes: 0 answered, 2 a wrong query or option, or no answer in time, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.query import run_query

    raise typer.Exit(run_query(options, json=json))


@commands.command(short_help="Write rollouts for verl, or as Parquet, ATIF or messages.")
@with_choices
@with_source
def export(*, choices: ExportChoices, json: Json = False, source: SourceOptions) -> None:
    """Write recorded rollouts for verl, or as Parquet, ATIF v1.7 or OpenAI messages.

    A server may be using the folder. The output appears only when it is complete. For verl and Parquet, the command
    stops at a rollout that cannot be trained on, and prints why. `osmosis-grpc docs export` has examples.

    Exit codes: 0 written, 1 a rollout cannot be written, 2 a wrong option, or there is nothing to write, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.export import run_export

    raise typer.Exit(run_export(choices, source, json=json))


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
