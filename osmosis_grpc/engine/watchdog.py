"""Warns about code that blocks the event loop, and about running rollouts that make no progress.

A thread regularly schedules a callback on the loop. If the callback does not run in time, the watchdog finds the line
that the loop's thread is executing.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType

from osmosis_grpc.agent.tool_calls import TOOL_TASK
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.types import RolloutState
from osmosis_grpc.protocol.types.stack_frames import is_installed, is_own
from osmosis_grpc.supervise import OnFailure, StartedThread, Supervisor, job

log = logging.getLogger(__name__)

WATCH = job("engine.watchdog", OnFailure.RESTART, "thread")


class Watchdog:
    """Watches the running loop from its own thread, from start() to stop()."""

    def __init__(self, blocked_after: float) -> None:
        self._limit = blocked_after
        self._stop = threading.Event()
        self._thread: StartedThread | None = None
        self.on_lag: Callable[[float], object] = lambda seconds: None
        """Called on the loop with the seconds that each callback was delayed."""
        self.blocked = 0
        """How many times the loop was blocked."""
        self.last = ""
        """Where the loop was last blocked, as "file:line in function"."""
        self.last_tool = ""
        """The tool that last blocked the loop, or "" if no tool of execute_tool_calls was running."""
        self._last_task = ""
        self.paused = False
        """Set while a process starts: its imports block the loop, but no rollout waits for the loop yet."""

    def start(self, supervisor: Supervisor) -> None:
        """Begin to watch the running loop."""
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        self._monotonic = supervisor.system.monotonic
        self._thread = supervisor.thread(WATCH, lambda: self._watch(loop, ident))

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * self._limit + 1)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> bool:
        """Schedule one callback, and report if it is late. Return False after stop(), or if the loop has ended."""
        if self._stop.wait(self._limit):
            return False
        if self.paused:
            return True
        alive = threading.Event()
        try:
            loop.call_soon_threadsafe(self._answer, alive, self._monotonic())
        except RuntimeError:  # the loop is closed
            return False
        if alive.wait(self._limit) or self._stop.is_set():
            return True
        frame = sys._current_frames().get(thread)
        if frame is not None and not self.paused:
            task = asyncio.current_task(loop)
            name = task.get_name() if task is not None else ""
            self._report(frame, name)
        while not alive.wait(self._limit) and not self._stop.is_set():
            pass
        return True

    def _answer(self, alive: threading.Event, asked: float) -> None:
        alive.set()
        self.on_lag(self._monotonic() - asked)

    def blocked_at(self, task: str) -> str:
        """Return where the task with this name blocked the loop, or "" if it did not or another task did so later."""
        return self.last if task and task == self._last_task else ""

    def _report(self, frame: FrameType, task: str) -> None:
        frames = _callback(frame)
        if not frames:
            return  # no callback blocks the loop; the machine is too busy
        tool = task.removeprefix(TOOL_TASK) if task.startswith(TOOL_TASK) else ""
        self.blocked += 1
        self.last, self.last_tool, self._last_task = _where(frames), tool, task
        log.warning(
            "the event loop has been blocked for more than %.0f ms at %s%s; every rollout waits for it. "
            "Use await asyncio.to_thread(...) for code that blocks.",
            self._limit * 1000,
            self.last,
            tool and f", by the tool {tool}",
        )


def _callback(innermost: FrameType) -> list[FrameType]:
    """Return the frames of the callback that the loop is running, the innermost frame first.

    If the loop is waiting for events, return no frames.
    """
    frames = []
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_name != "_run_once":  # the frames outside it run the loop
        frames.append(frame)
        frame = frame.f_back
    idle = frame is not None and (not frames or frames[-1].f_code.co_name == "select")
    return [] if idle else frames


def _where(frames: list[FrameType]) -> str:
    """Return the innermost line of the user's own code. If there is none, return the innermost line."""
    for frame in frames:
        if is_own(frame.f_code.co_filename) and not is_installed(frame.f_code.co_filename):
            break
    else:
        frame = frames[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


MOST_LINES = 10
"""One sweep names at most this many stalled rollouts. Further ones are only counted."""


def warn_of_stalls(records: Iterable[Record], now: float, stalled_after: float) -> None:
    """Log each rollout that has had no event and no tool call for `stalled_after` seconds. `now` is monotonic.

    Each stall is logged once. If a rollout makes progress and then stalls again, it is logged again.
    """
    stalled = [
        record
        for record in records
        if record.state is RolloutState.RUNNING
        and record.run.termination is None
        and now - record.run.progress >= stalled_after
        and record.run.stall != record.run.progress
    ]
    for record in stalled:
        record.run.stall = record.run.progress
    for record in stalled[:MOST_LINES]:
        activity = record.activity()
        log.warning(
            "rollout %s (agent loop %s, attempt %d) has made no progress for %.0f s; it does: %s, since %s",
            record.rollout_id,
            record.agent_loop,
            record.attempt,
            now - record.run.progress,
            activity.description,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(activity.start_time)),
        )
    if len(stalled) > MOST_LINES:
        log.warning("%d more rollouts have made no progress for as long", len(stalled) - MOST_LINES)
