"""Notices code that blocks the event loop, and names the line.

A thread asks the loop for a sign of life; when none comes, it looks at what the loop's thread
is executing right then.
"""

import asyncio
import logging
import os
import sys
import sysconfig
import threading
from types import FrameType

log = logging.getLogger(__name__)

_STDLIB = sysconfig.get_path("stdlib")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Watchdog:
    """Watches the running loop from a thread of its own, between start() and stop()."""

    def __init__(self, blocked_after: float) -> None:
        self._limit = blocked_after
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.blocked = 0
        """How often the loop was found blocked."""
        self.last = ""
        """Where, the last time: file:line in function."""
        self.paused = False
        """Set while a process starts: it imports and builds a lot on the loop, and no rollout waits for it yet."""

    def start(self) -> None:
        """Begin; called on the loop that is to be watched."""
        args = (asyncio.get_running_loop(), threading.get_ident())
        self._thread = threading.Thread(target=self._watch, args=args, name="osmosis-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * self._limit + 1)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._stop.wait(self._limit):
            if self.paused:
                continue
            alive = threading.Event()
            try:
                loop.call_soon_threadsafe(alive.set)
            except RuntimeError:
                return
            if alive.wait(self._limit) or self._stop.is_set():
                continue
            frame = sys._current_frames().get(thread)
            if frame is not None and not self.paused:
                self._report(frame)
            while not alive.wait(self._limit) and not self._stop.is_set():
                pass

    def _report(self, frame: FrameType) -> None:
        frames = _callback(frame)
        if not frames:
            return  # the loop waits for events: it is this machine that has no time for it
        self.blocked += 1
        self.last = _where(frames)
        log.warning(
            "the event loop has been blocked for more than %.0f ms at %s; every rollout waits for it. "
            "Use await asyncio.to_thread(...) for code that blocks.",
            self._limit * 1000, self.last,
        )  # fmt: skip


def _callback(innermost: FrameType) -> list[FrameType]:
    """Returns the frames of the callback that the loop runs, the innermost first; none while it waits for events."""
    frames = []
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_name != "_run_once":  # below it is the program that runs the loop
        frames.append(frame)
        frame = frame.f_back
    idle = frame is not None and (not frames or frames[-1].f_code.co_name == "select")
    return [] if idle else frames


def _where(frames: list[FrameType]) -> str:
    """Returns the innermost line that is neither the standard library's nor ours, else the innermost."""
    for frame in frames:
        name = frame.f_code.co_filename
        foreign = not name.startswith((_STDLIB, _OURS, "<")) or name.startswith(os.path.join(_OURS, "testing"))
        if foreign and "site-packages" not in name:
            break
    else:
        frame = frames[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
