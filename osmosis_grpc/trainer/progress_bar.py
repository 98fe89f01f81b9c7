"""Shows how many rollouts are running, ended and failed: as a bar of rich on a terminal, otherwise as plain lines."""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterable, Iterable
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint
from typing import TYPE_CHECKING, TextIO

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome, RolloutRequest

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

log = logging.getLogger(__name__)

_LINE_PERIOD = 5.0
"""At least this many seconds pass between two lines."""
_RATE_OVER = 256
"""The rate is computed over this many of the rollouts that ended last."""


class Progress:
    """Counts the rollouts of one run(). Use it as a context manager, on the event loop's thread.

    Args:
        total: The expected number of rollouts; None if unknown.
        file: Where the progress is shown; by default stderr. A bar needs a terminal and rich (the extra `server`).
    """

    def __init__(self, total: int | None = None, *, file: TextIO | None = None) -> None:
        self._total = total
        self._file: TextIO | None = file or sys.stderr
        self._started = self._ended = self._failed = self._rewarded = 0
        self._rewards = 0.0
        self._ends: deque[float] = deque([time.monotonic()], _RATE_OVER)
        self._bar: RichProgress | None = None
        self._written = time.monotonic()

    def watch(self, done: "asyncio.Future[RolloutOutcome]") -> None:
        """Count a rollout as started, and as ended when its future is done. An exception counts as failed."""
        self._started += 1
        done.add_done_callback(self._count)
        self._draw()

    def __enter__(self) -> "Progress":
        self._bar = None if self._file is None else _bar(self._file)
        if self._bar is not None:
            self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._draw(last=True)
        if self._bar is not None:
            self._bar.stop()

    def __str__(self) -> str:
        """Return the numbers, for example "37 of 64 done, 8 in flight, 1 failed, mean reward 0.531, 12.4/s"."""
        of = "" if self._total is None else f" of {max(self._total, self._started)}"
        mean = f", mean reward {self._rewards / self._rewarded:.3f}" if self._rewarded else ""
        seconds = time.monotonic() - self._ends[0]
        rate = f", {(len(self._ends) - 1) / seconds:.1f}/s" if self._ended and seconds > 0 else ""
        return f"{self._ended}{of} done, {self._started - self._ended} in flight, {self._failed} failed{mean}{rate}"

    def _count(self, done: "asyncio.Future[RolloutOutcome]") -> None:
        outcome = None if done.cancelled() or done.exception() is not None else done.result()
        reward = None if outcome is None else outcome.mean_reward
        if reward is not None:
            self._rewarded += 1
            self._rewards += reward
        self._ended += 1
        self._failed += outcome is None or outcome.status is not OutcomeStatus.COMPLETED
        self._ends.append(time.monotonic())
        self._draw()

    def _draw(self, *, last: bool = False) -> None:
        if self._bar is not None:
            total = None if self._total is None else max(self._total, self._started)
            self._bar.update(self._bar.task_ids[0], description=str(self), completed=self._ended, total=total)
        elif self._file is not None and (last or time.monotonic() >= self._written + _LINE_PERIOD):
            self._written = time.monotonic()
            try:
                self._file.write(f"rollouts: {self}\n")
                self._file.flush()
            except (OSError, ValueError) as error:  # for example, the file is closed: the rollouts go on without it
                self._file = None
                log.warning("progress is not shown any more: %s", error)


def _bar(file: TextIO) -> "RichProgress | None":
    """Return a bar; None if the file is not a terminal that can draw it. Other output appears above the bar."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    console = Console(file=file)
    if not file.isatty() or not console.is_terminal or console.is_dumb_terminal:
        return None
    columns = (TextColumn("rollouts"), BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=console, redirect_stdout=sys.stdout is not None and sys.stdout.isatty())


def shown(
    progress: bool, requests: Iterable[RolloutRequest] | AsyncIterable[RolloutRequest], group_size: int
) -> AbstractContextManager[Progress | None]:
    """Return the Progress of a run() over these requests; an empty context without `progress`."""
    if not progress:
        return nullcontext()
    expected = length_hint(requests, 0)
    return Progress(expected * group_size if expected else None)
