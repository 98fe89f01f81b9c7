"""Formats rollouts as a table. A column without values is left out.

If a line is too wide, a failure, an activity and an origin are in lines below their row, and some columns are left out.
Ids stay whole: if a line is still too wide, each id is in the line above its row.
"""

from collections.abc import Callable, Iterator, Sequence

from osmosis_grpc.cli.screen import wrapped
from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.phrases import span

GAP = "  "
NARROWEST = 12
"""The column AGENT is not cut to fewer characters."""
BELOW = ("FAILURE", "ACTIVITY", "ORIGIN")
"""The columns whose values are below their row if a line is too wide, in this order."""
LEFT_OUT = ("FINISH", "TOKENS", "IDLE", "CHATS")
"""The columns that are left out if a line is still too wide, in this order."""


def table(rows: Sequence[RolloutInfo], now: float, width: int) -> Iterator[str]:
    """Yield the lines of a table. `now` is in Unix seconds. Control characters in texts are escaped.

    Lines have at most `width` columns. Only an id, in a line of its own, can be wider.
    """
    cells = {name: [printable(cell(info, now)) for info in rows] for name, cell in COLUMNS.items()}
    cells = {name: column for name, column in cells.items() if any(column) or name in ALWAYS}
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    below = _narrow(widths, width)
    above = "ID" not in widths
    indent = "  " if above else ""
    if above:
        yield "ID"
    yield indent + _line([(name, name, size) for name, size in widths.items()])
    for at in range(len(rows)):
        if above:
            yield cells["ID"][at]
        yield indent + _line([(name, cells[name][at], size) for name, size in widths.items()])
        for name in below:
            if cells[name][at]:
                yield from (f"  {piece}" for piece in wrapped(cells[name][at], width - 2))


def _narrow(widths: dict[str, int], most: int) -> list[str]:
    """Make a line narrower until it fits. Return the columns that are below the row.

    Without the column ID, the ids are above the rows.
    """

    def over() -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - most

    below = []
    for name in BELOW:
        if over() > 0 and name in widths:
            del widths[name]
            below.append(name)
    if over() > 0:
        widths["AGENT"] = max(min(NARROWEST, widths["AGENT"]), widths["AGENT"] - over())
    for name in LEFT_OUT:
        if over() > 0:
            widths.pop(name, None)
    if over() > 0:
        del widths["ID"]
    return below


def _line(cells: Sequence[tuple[str, str, int]]) -> str:
    return GAP.join(
        _cut(text, width).rjust(width) if name in NUMBERS else _cut(text, width).ljust(width)
        for name, text, width in cells
    ).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


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
    "TOKENS": lambda info, now: f"{info.prompt_tokens}/{info.response_tokens}",
    "FINISH": lambda info, now: info.finish_reason,
    "ORIGIN": lambda info, now: "" if info.fork is None else f"fork of {info.fork}",
    "FAILURE": _failure,
}
ALWAYS = ("ID", "AGENT", "STATE")
NUMBERS = ("CHATS", "ELAPSED", "IDLE", "REWARD", "TOKENS")
