"""Declares the options that select rollouts. Imports only typer."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_grpc.cli.option_groups import with_options

if TYPE_CHECKING:
    from osmosis_grpc.records.reading.list_filter import ListOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Which rollouts. Each field is an option of the command line."""

    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only these states, such as running or failed; may be repeated."),
    ] = None
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only this agent loop.")] = ""
    group: Annotated[str, typer.Option("--group", metavar="ID", help="Only this group.")] = ""
    reason: Annotated[
        list[str] | None,
        typer.Option(
            "--reason", metavar="REASON", help="Only failures for these reasons, such as AGENT_EXCEPTION; repeatable."
        ),
    ] = None
    finish_reason: Annotated[
        str, typer.Option("--finish-reason", metavar="REASON", help="Only this finish reason, such as stop or length.")
    ] = ""
    min_reward: Annotated[
        float | None, typer.Option("--min-reward", metavar="X", help="Only rewards of at least this.")
    ] = None
    max_reward: Annotated[
        float | None, typer.Option("--max-reward", metavar="X", help="Only rewards of at most this.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only those accepted in the last 10m, 2h, 1d, or since @UNIX."),
    ] = None
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="Only those accepted longer ago than 10m, 2h, 1d, or before @UNIX."
        ),
    ] = None
    stalled: Annotated[
        str | None,
        typer.Option("--stalled", metavar="TIME", help="Only unfinished ones without progress for 5s, 10m or so."),
    ] = None
    undelivered: Annotated[
        bool, typer.Option("--undelivered", help="Only those whose outcome has not reached the trainer.")
    ] = False
    forked_from: Annotated[
        str, typer.Option("--forked-from", metavar="ID", help="Only rollouts that fork from this one.")
    ] = ""
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first. Default: the newest first.")] = False

    def with_limit(self, limit: int) -> "ListOptions":
        """Return these options and a limit, as the reader of rollouts takes them."""
        from osmosis_grpc.records.reading.list_filter import ListOptions

        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        states, reasons = (tuple(chosen.pop(name) or ()) for name in ("state", "reason"))
        return ListOptions(states=states, reasons=reasons, limit=limit, **chosen)


with_filters = with_options(FilterOptions, "filters")
"""Gives a command the options of FilterOptions. The function gets them as its parameter `filters`."""
