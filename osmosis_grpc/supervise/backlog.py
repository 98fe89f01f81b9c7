"""Work that can wait. In each iteration of the event loop it takes little time, so that other callbacks come soon."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

SHARE = 0.0005
"""In one iteration of the event loop, the calls of a backlog take about this many seconds."""
MOST = 64
"""In one iteration of the event loop, a backlog makes at most this many calls."""


class Backlog:
    """Calls functions in the order of add(). Belongs to one event loop.

    An agent that waits for a reply gets it after several iterations of the event loop. If many rollouts begin or end
    together, their work is done in many short iterations, and the reply comes soon.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._variables = contextvars.Context()
        """The context of all calls. It is empty, so that no rollout gets the context variables of another one."""

    def add(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function soon. The function handles its errors."""
        self._calls.append((call, arguments))
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._work, context=self._variables)

    def _work(self) -> None:
        time = asyncio.get_running_loop().time
        calls, end = self._calls, time() + SHARE
        try:
            for _ in range(min(MOST, len(calls))):
                call, arguments = calls.popleft()
                call(*arguments)
                if time() >= end:
                    break
        finally:
            self._scheduled = False
            if calls:
                self._schedule()
