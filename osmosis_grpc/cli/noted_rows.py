"""Rows of a run that deserve a look: failed, no reward or score, failed tools, cut, or with the lowest reward."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate import RowResult
from osmosis_grpc.records.reading.phrases import counted

MOST_LINES = 3
WITH_TOOL_ERRORS = "with errors of tools"
MOST_ROWS = 5
"""A line names at most this many rows."""


@dataclass(slots=True)
class _Rows:
    """The rows of one kind. Only the first ones are kept."""

    count: int = 0
    names: list[str] = field(default_factory=list)
    shown: str = ""
    """The first row whose rollout is in the journal. A refused row has no rollout."""

    def add(self, result: RowResult) -> None:
        self.count += 1
        self.names = sorted([*self.names, result.name], key=_numbers)[:MOST_ROWS]
        if result.token_usage:
            self.shown = min(self.shown or result.name, result.name, key=_numbers)

    def text(self) -> str:
        more = f" and {self.count - len(self.names)} more" if self.count > len(self.names) else ""
        return f"({'row' if self.count == 1 else 'rows'} {', '.join(self.names)}{more})"


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".")]


class Noted:
    """Collects the rows that deserve a look. Without `rewards`, rewards that the agent itself set are ignored."""

    def __init__(self, *, rewards: bool) -> None:
        self._rewards = rewards
        self._kinds = {name: _Rows() for name in ("failed", "without a score", WITH_TOOL_ERRORS, "without a reward")}
        self._cut: dict[str, _Rows] = {}
        self._lowest: dict[str, tuple[float, _Rows]] = {}
        """The lowest value of the reward, or of each score, and the rows that have it."""
        self._highest: dict[str, float] = {}

    def add(self, result: RowResult) -> None:
        """Count a result."""
        if not result.completed:
            self._kinds["failed"].add(result)
            return
        if result.score_errors:
            self._kinds["without a score"].add(result)
        if result.tool_errors:
            self._kinds[WITH_TOOL_ERRORS].add(result)
        if result.cut:
            self._cut.setdefault(result.cut, _Rows()).add(result)
        values = dict(result.scores or {})
        if self._rewards and result.reward is None:
            self._kinds["without a reward"].add(result)
        elif self._rewards and result.reward is not None:
            values = {"reward": result.reward}
        for name, value in values.items():
            self._highest[name] = max(self._highest.get(name, value), value)
            if name not in self._lowest or value < self._lowest[name][0]:
                self._lowest[name] = value, _Rows()
            if value == self._lowest[name][0]:
                self._lowest[name][1].add(result)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the most important lines, each with the name of a row to look at, or "" if there is none."""
        found = [(f"{rows.count} {kind} {rows.text()}", rows.shown) for kind, rows in self._kinds.items() if rows.count]
        for limit, rows in self._cut.items():
            found.append((f"{counted(rows.count, 'row')} cut by {printable(limit)} {rows.text()}", rows.shown))
        for name, (value, rows) in self._lowest.items():
            if value <= 0 or value < self._highest[name]:
                found.append((f"lowest {printable(name)} {value:g} {rows.text()}", rows.shown))
        yield from found[:MOST_LINES]
