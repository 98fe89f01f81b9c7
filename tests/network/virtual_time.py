"""An event loop whose clock stands still while a task is ready, and jumps to the next timer when none is."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _NoWait(selectors.DefaultSelector):
    """Moves the clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        if not found and timeout:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs timers in order, without waiting for them. `time()` begins at 0."""

    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a VirtualLoop, and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Let an async test run on a VirtualLoop."""

    @functools.wraps(test)
    def run(**arguments: Any) -> Any:
        return run_virtually(test(**arguments))

    return run


async def elapse(seconds: float) -> None:
    """Moves the clock, and runs the timers until then."""
    await asyncio.sleep(seconds)  # no time passes: the clock is virtual
