"""Work that can wait. In each iteration of the event loop it takes little time, so that other callbacks come soon."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

SHARE = 0.0005
"""In one iteration of the event loop, the calls of a backlog take about this many seconds."""
PART = 0.25
"""In a long iteration they take more: this part of the time since the last calls. So they always make progress."""


class Backlog:
    """Calls functions in the order of add(). Belongs to one event loop.

    An agent that waits for a reply gets it after several iterations of the event loop. If many rollouts begin or end
    together, their work is done in many short iterations, and the reply comes soon. The number of waiting calls is
    bounded by the rollouts and the events that are in flight.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._since = 0.0
        """When the next calls were scheduled."""
        self._variables = contextvars.copy_context()
        """The context of the code that made the backlog. Each call gets a copy."""

    def add(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function soon. The function handles its errors.

        The function has the context variables of the code that made the backlog. So no rollout gets those of another
        one.
        """
        self._calls.append((call, arguments))
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._scheduled, self._since = True, loop.time()
        loop.call_soon(self._work, context=self._variables.copy())

    def _work(self) -> None:
        time = asyncio.get_running_loop().time
        calls, began = self._calls, time()
        end = began + max(SHARE, PART * (began - self._since))
        try:
            for _ in range(len(calls)):
                call, arguments = calls.popleft()
                self._variables.copy().run(call, *arguments)
                if time() >= end:
                    break
        finally:
            self._scheduled = False
            if calls:
                self._schedule()
