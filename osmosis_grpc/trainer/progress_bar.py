"""Shows how many rollouts run, ended and failed: a bar on a terminal, otherwise plain lines.

A Progress observes the futures of rollouts. It draws on the event loop.
"""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterable, Iterable
from contextlib import AbstractContextManager, nullcontext
from operator import length_hint
from typing import Any, TextIO

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.supervise import OnFailure, Supervisor, job

log = logging.getLogger(__name__)

DRAW = job("trainer.draw_progress", OnFailure.RESTART)

_BAR_PERIOD = 0.2
_LINE_PERIOD = 5.0
_QUIET_LINE_PERIOD = 60.0
"""Seconds between lines while nothing changes."""
_REFRESHES = 10
"""The most draws by refresh() between two draws by the timer; a draw takes about a millisecond."""
_RATE_OVER = 256
"""The shown rate is computed from the newest ends of rollouts, this many."""


class Progress:
    """Counts the rollouts of one run(). Used as a context manager, on the event loop's thread.

    `total` is the expected number of rollouts, None if unknown. Progress draws on `file`, by default stderr. A bar
    needs a terminal and rich (the extra `server`). Otherwise Progress writes lines.
    """

    def __init__(
        self, total: int | None = None, *, file: TextIO | None = None, supervisor: Supervisor | None = None
    ) -> None:
        self._supervisor = supervisor or Supervisor("the progress display")
        self._total = total
        self._file: TextIO | None = file or sys.stderr
        self._started = self._ended = self._failed = self._rewarded = 0
        self._rewards = 0.0
        self._began = time.monotonic()
        self._ends: deque[float] = deque([self._began], _RATE_OVER)
        self._display: Lines | Bar | None = None
        self._task: asyncio.Task[None] | None = None
        self._refreshed = 0

    def watch(self, done: "asyncio.Future[RolloutOutcome]") -> None:
        """Count a rollout as started, and as ended when its future is done. An exception counts as failed."""
        self._started += 1
        done.add_done_callback(self._count)

    def refresh(self) -> None:
        """Draw the bar again, because the caller's code may block the event loop next. Lines keep their period."""
        if self._display is not None and self._display.refreshes and self._refreshed < _REFRESHES:
            self._refreshed += 1
            self._draw()

    def __enter__(self) -> "Progress":
        if self._file is not None:  # a process may have no stderr
            self._display = _display(self._file)
            self._draw()
            self._task = self._supervisor.every(DRAW, self._display.period, self._redraw)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
        self._draw(last=True)

    def __str__(self) -> str:
        """Returns the numbers, for example "37 of 64 done, 8 in flight, 1 failed, mean reward 0.531, 12.4/s"."""
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

    def _redraw(self) -> None:
        self._refreshed = 0
        self._draw()

    def _draw(self, *, last: bool = False) -> None:
        display = self._display
        if display is None:
            return
        total = None if self._total is None else max(self._total, self._started)
        try:
            (display.finish if last else display.draw)(str(self), self._ended, total)
        except (OSError, ValueError) as error:  # the file is closed, but the rollouts continue
            self._display = None
            log.warning("progress is not shown any more: %s", error)


class Lines:
    """Writes a line when the numbers have changed."""

    period = _LINE_PERIOD
    """Seconds between draws."""
    refreshes = False
    """Whether draw() may be called more often."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._ended = 0
        self._written = time.monotonic()

    def draw(self, text: str, ended: int, total: int | None) -> None:
        """Write a line if rollouts have ended since the last line, or if the last line is a minute old."""
        now = time.monotonic()
        if ended != self._ended or now - self._written >= _QUIET_LINE_PERIOD:
            self.finish(text, ended, total)

    def finish(self, text: str, ended: int, total: int | None) -> None:
        """Write a line with the current numbers."""
        self._ended, self._written = ended, time.monotonic()
        self._file.write(f"rollouts: {text}\n")
        self._file.flush()


class Bar:
    """A progress bar of rich. Other output on the terminal appears above it."""

    period = _BAR_PERIOD
    refreshes = True

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("rollouts"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def draw(self, text: str, ended: int, total: int | None) -> None:
        """Draw the bar."""
        self._bar.update(self._task, description=text, completed=ended, total=total, refresh=True)

    def finish(self, text: str, ended: int, total: int | None) -> None:
        """Draw the bar for the last time. The bar stays on the screen."""
        try:
            self.draw(text, ended, total)
        finally:
            self._bar.stop()


def shown(
    progress: bool,
    requests: Iterable[RolloutRequest] | AsyncIterable[RolloutRequest],
    group_size: int,
    supervisor: Supervisor,
) -> AbstractContextManager[Progress | None]:
    """Returns the Progress of a run() over these requests; an empty context without `progress`."""
    if not progress:
        return nullcontext()
    expected = length_hint(requests, 0)
    return Progress(expected * group_size if expected else None, supervisor=supervisor)


def _display(file: TextIO) -> Lines | Bar:
    if file.isatty():
        try:
            from rich.console import Console
        except ImportError:
            return Lines(file)
        console = Console(file=file)
        if console.is_terminal and not console.is_dumb_terminal:
            return Bar(console)
    return Lines(file)
