"""Formats rollouts as a table. A column without values is left out. On a terminal, lines have the terminal's width."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence

from osmosis_grpc.types import RolloutInfo
from osmosis_grpc.types.outcome import printable

GAP = "  "
NARROWEST = 12
"""No column is cut to fewer characters."""
CUT_FIRST = ("FAILURE", "ACTIVITY", "AGENT")
"""The columns that are cut if a line is too wide, in this order. The others are never cut."""


def table(rows: Sequence[RolloutInfo], now: float) -> Iterator[str]:
    """Yield the lines of a table. `now` is in Unix seconds. Control characters in texts are escaped."""
    cells = {name: [printable(cell(info, now)) for info in rows] for name, cell in COLUMNS.items()}
    cells = {name: column for name, column in cells.items() if any(column) or name in ALWAYS}
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    if sys.stdout.isatty():
        _narrow(widths, shutil.get_terminal_size().columns)
    yield _line([(name, name, width) for name, width in widths.items()])
    for values in zip(*cells.values(), strict=True):
        yield _line([(name, value, widths[name]) for name, value in zip(cells, values, strict=True)])


def _narrow(widths: dict[str, int], most: int) -> None:
    """Make columns narrower until a line fits."""
    for name in CUT_FIRST:
        over = sum(widths.values()) + len(GAP) * (len(widths) - 1) - most
        if over > 0 and name in widths:
            widths[name] = max(min(NARROWEST, widths[name]), widths[name] - over)


def _line(cells: Sequence[tuple[str, str, int]]) -> str:
    return GAP.join(
        _cut(text, width).rjust(width) if name in NUMBERS else _cut(text, width).ljust(width)
        for name, text, width in cells
    ).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def span(seconds: float) -> str:
    """Return a duration for people, such as 0.4s, 12s, 3:05 or 2:03:04."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _id(info: RolloutInfo, now: float) -> str:
    return info.rollout_id if info.attempt == 1 else f"{info.rollout_id} (attempt {info.attempt})"


def _elapsed(info: RolloutInfo, now: float) -> str:
    return span((now if info.end_time is None else info.end_time) - info.accept_time)


def _idle(info: RolloutInfo, now: float) -> str:
    return "" if info.progress_time is None else span(now - info.progress_time)


def _activity(info: RolloutInfo, now: float) -> str:
    if info.end_time is not None and not info.undelivered:
        return ""
    return f"{info.activity.description} {span(now - info.activity.start_time)}"


def _failure(info: RolloutInfo, now: float) -> str:
    return ": ".join(filter(None, (info.failure_reason, info.failure_summary)))


COLUMNS: dict[str, Callable[[RolloutInfo, float], str]] = {
    "ID": _id,
    "AGENT": lambda info, now: info.agent_loop,
    "STATE": lambda info, now: info.state.value,
    "CHATS": lambda info, now: str(info.chats),
    "ELAPSED": _elapsed,
    "IDLE": _idle,
    "ACTIVITY": _activity,
    "REWARD": lambda info, now: "" if info.reward is None else f"{info.reward:.4g}",
    "TOKENS": lambda info, now: str(info.response_tokens),
    "FAILURE": _failure,
}
ALWAYS = ("ID", "AGENT", "STATE")
NUMBERS = ("CHATS", "ELAPSED", "IDLE", "REWARD", "TOKENS")
