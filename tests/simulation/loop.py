"""An event loop with a simulated clock. Time stands still while a task is ready, and jumps to the next timer otherwise.

No thread, socket or real sleep is used. The loop runs all simulated processes: the context of each callback names its
process. Callbacks of a frozen process do not run: those of a stopped process run later, those of a killed one never.

The loop is our own because it needs few lines, and runs on Python 3.11. simloom needs Python 3.12 or newer.
"""

import asyncio
import heapq
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, Protocol

MAX_STEPS = 500_000
"""The loop raises Stuck when this many callbacks have run and the clock stood still."""


class Freezable(Protocol):
    """A simulated process, as the loop sees it."""

    frozen: bool
    held: list[asyncio.Handle]
    """The callbacks that were due while the process was frozen, in order."""
    tasks: "weakref.WeakSet[asyncio.Task[Any]]"


CURRENT: ContextVar[Freezable | None] = ContextVar("simulated_process", default=None)
"""The process whose code runs. None for the simulated network and for the code of the simulation."""


class Stuck(RuntimeError):
    """No task can run, or tasks run for ever while the clock stands still."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of asyncio. `time()` begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        """The number of callbacks that have run."""
        self._steps_then = 0
        self._ready: Any
        self._scheduled: list[asyncio.TimerHandle]
        self._timers_cancelled = 0
        self.set_task_factory(_task_of_process)

    def time(self) -> float:
        """Returns the simulated seconds."""
        return self.now

    def resume(self, process: Freezable) -> None:
        """Runs the callbacks that were held for a process."""
        held, process.held = process.held, []
        self._ready.extend(held)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        """Calls a function soon. There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timers_cancelled -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("every task waits, and no timer is set")
            self.now = max(self.now, scheduled[0].when())
            self._steps_then = self.steps
        while scheduled and scheduled[0].when() <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
            else:
                self._timers_cancelled -= 1
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(CURRENT)
            if process is not None and process.frozen:
                process.held.append(handle)
            else:
                self.steps += 1
                handle._run()
        if self.steps - self._steps_then > MAX_STEPS:
            raise Stuck(f"{MAX_STEPS} callbacks have run at {self.now:.3f} s, and the clock stands still")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > 200 and self._timers_cancelled * 2 > len(self._scheduled):
            kept = []
            for timer in self._scheduled:
                if timer._cancelled:
                    timer._scheduled = False
                else:
                    kept.append(timer)
            heapq.heapify(kept)
            self._scheduled[:] = kept
            self._timers_cancelled = 0

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _task_of_process(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None, **options: Any
) -> "asyncio.Task[Any]":
    """Makes a task, and adds it to the tasks of its process."""
    process = CURRENT.get() if context is None else context.get(CURRENT)
    task = asyncio.Task(work, loop=loop, context=context, **options)
    if process is not None:
        process.tasks.add(task)
    return task
