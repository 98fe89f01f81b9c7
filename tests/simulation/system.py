"""The System of a simulated process: simulated clocks, random numbers and ids by seed, no thread.

Functions that block run on the event loop, a moment after the call. Threads other than those of Consumers do not run.
Of the unmodified server and trainer, only the watchdog of the event loop starts one. A simulated loop is never blocked.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from osmosis_grpc.supervise import Consumer, Job, StartedThread, System
from tests.simulation.committer import Disk, SimulatedConsumer

BEGAN = 1_800_000_000.0
"""The wall clock when the simulated loop's clock is 0, in Unix seconds."""


class SimulatedSystem(System):
    """The System of one process. `draw` makes its random numbers and ids."""

    def __init__(self, loop: asyncio.AbstractEventLoop, draw: Random, disk: Disk) -> None:
        self.monotonic = loop.time
        self.uniform = draw.uniform
        self.ahead = 0.0
        """How many seconds the wall clock is ahead. A test changes it at any time."""
        self.disk = disk
        self._loop = loop
        self._draw = draw

    def time(self) -> float:
        return BEGAN + self._loop.time() + self.ahead

    def new_id(self) -> str:
        return f"{self._draw.getrandbits(128):032x}"

    def new_secret(self) -> str:
        return self.new_id()

    async def run(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        await asyncio.sleep(self.uniform(0.0, 0.002))  # simulated time, in which a thread would begin
        return function(*args, **named)

    def thread(self, name: str, run: Callable[[], None]) -> StartedThread:
        return _NoThread()

    def consumer(self, owner: Any, job: Job, consuming: Any) -> Consumer[Any]:
        return SimulatedConsumer(self.disk, owner, job, consuming)


class _NoThread:
    """A thread that has ended."""

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        return
