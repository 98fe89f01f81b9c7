"""Declares the options that select rollouts. Imports only typer."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from osmosis_grpc.cli.option_groups import choice, with_options

if TYPE_CHECKING:
    from osmosis_grpc.records.reading.list_filter import ListOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Which rollouts. Each field is an option of the command line."""

    states: tuple[str, ...] = choice(
        "--state STATE", "Only these states, such as running or failed; may be repeated.", ()
    )
    agent: str = choice("--agent NAME", "Only this agent loop.", "")
    group: str = choice("--group ID", "Only this group.", "")
    reasons: tuple[str, ...] = choice(
        "--reason REASON", "Only failures for these reasons, such as AGENT_EXCEPTION; repeatable.", ()
    )
    finish_reason: str = choice("--finish-reason REASON", "Only this finish reason, such as stop or length.", "")
    min_reward: float | None = choice("--min-reward X", "Only rewards of at least this.")
    max_reward: float | None = choice("--max-reward X", "Only rewards of at most this.")
    since: str | None = choice("--since TIME", "Only those accepted in the last 10m, 2h, 1d, or since @UNIX.")
    before: str | None = choice("--before TIME", "Only those accepted longer ago than 10m, 2h, 1d, or before @UNIX.")
    stalled: str | None = choice("--stalled TIME", "Only unfinished ones without progress for 5s, 10m or so.")
    undelivered: bool = choice("--undelivered", "Only those whose outcome has not reached the trainer.", False)
    forked_from: str = choice("--forked-from ID", "Only rollouts that fork from this one.", "")
    oldest: bool = choice("--oldest", "The oldest first. Default: the newest first.", False)

    def with_limit(self, limit: int) -> "ListOptions":
        """Return these options and a limit, as the reader of rollouts takes them."""
        from osmosis_grpc.records.reading.list_filter import ListOptions

        return ListOptions(limit=limit, **asdict(self))


with_filters = with_options(FilterOptions, "filters")
"""Gives a command the options of FilterOptions. The function gets them as its parameter `filters`."""
