"""Bars: where a stretch of an axis lies in a picture of WIDTH units."""

from dataclasses import dataclass

WIDTH = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a bar. `seconds` is its length on the axis."""

    kind: str
    left: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `begin` to `end`. A bar on it has at least `least` units, so that it can be seen."""

    begin: float
    end: float
    least: float

    def bar(self, kind: str, start: float, end: float) -> Bar:
        """Return the bar from `start` to `end`, as far as the axis has it."""
        scale = WIDTH / max(1e-9, self.end - self.begin)
        left = min(max(0.0, (start - self.begin) * scale), WIDTH - self.least)
        width = min(max(self.least, (end - start) * scale), WIDTH - left)
        return Bar(kind, round(left, 1), round(width, 1), max(0.0, end - start))
