"""Simulated processes, which can be stopped and killed, and the random streams of a seed."""

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine
from random import Random
from typing import Any

from tests.simulation.loop import CURRENT, SimulatedLoop

AWAITS = 100
"""A coroutine that is closed may await so often before it is left as it is."""


class Randomness:
    """The random streams of one seed. Each source of choices has a stream of its own, found by its name.

    One more draw in one stream changes nothing in the others.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def __call__(self, name: str) -> Random:
        """Returns the stream of a name, the same object for the same name."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed} {name}")
        return stream


class Process:
    """One process, from its start to its end. A restarted program is a new Process."""

    def __init__(self, loop: SimulatedLoop, network: Any, name: str, host: str) -> None:
        self.loop = loop
        self.name = name
        """The name of the program, such as server-1. It is the same for each process of the program."""
        self.host = host
        self.network = network
        self.frozen = False
        self.dead = False
        self.held: list[asyncio.Handle] = []
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self)
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """The tasks of this process. The loop adds them."""
        self._killed: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any], name: str = "") -> "asyncio.Task[Any]":
        """Runs a coroutine as a task of this process."""
        if self.dead:
            work.close()
        return self.loop.create_task(work, context=self._context.copy(), name=name or f"{self.name} main")

    def call(self, callback: Any, *args: Any) -> None:
        """Calls a function soon, as code of this process."""
        self.loop.call_soon(callback, *args, context=self._context)

    def stop(self) -> None:
        """Stops the process, as SIGSTOP does."""
        self.frozen = True

    def resume(self) -> None:
        """Lets a stopped process run again, as SIGCONT does."""
        if not self.dead:
            self.frozen = False
            self.loop.resume(self)

    def kill(self) -> None:
        """Ends the process at once, as SIGKILL does. No line of its code runs from now on.

        Its tasks are kept until the end of the world. Otherwise their `finally` blocks would run now.
        """
        self.frozen = self.dead = True
        self._killed = list(self.tasks)

    def forget(self) -> None:
        """Drops the tasks and callbacks of a killed process, at the end of the world.

        The `finally` blocks of the tasks run here.
        """
        for task in self._killed:
            if not task.done():
                _close(task.get_coro())
        self._killed.clear()
        self.held.clear()


def _close(work: Any) -> None:
    """Ends a coroutine that nobody runs any more. What it raises meanwhile has no meaning: its loop is closed."""
    for _ in range(AWAITS):
        try:
            work.close()
        except RuntimeError:  # it raises this, or it awaits something more
            continue
        except BaseException:  # an agent may raise anything
            pass
        return
