"""The clocks, random numbers, ids and threads of this machine.

Servers, trainers, journals and ledgers use them through `Supervisor.system` only. So a test that replaces the System
decides the time, the order and every id. scripts/lint.py checks this rule.
"""

import asyncio
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from osmosis_grpc.supervise.consumer import Consumer, Consuming, StartedThread, ThreadConsumer
from osmosis_grpc.supervise.jobs import Job

if TYPE_CHECKING:
    from osmosis_grpc.supervise.supervisor import Supervisor

P = ParamSpec("P")
R = TypeVar("R")


class System:
    """This machine. A subclass of a test replaces some or all attributes."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Returns seconds that never decrease. A class that reads them often keeps this function."""
    time: Callable[[], float] = staticmethod(time.time)
    """Returns Unix seconds."""
    uniform: Callable[[float, float], float] = staticmethod(random.uniform)
    """Returns a random number between two numbers."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def new_id(self) -> str:
        """Return a unique id of 32 hexadecimal digits. random.seed() of a program does not change it."""
        return os.urandom(16).hex()

    def new_secret(self) -> str:
        """Return 192 random bits that nobody can guess, as 32 URL-safe characters."""
        return secrets.token_urlsafe(24)

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Call a function that blocks, on a thread. Returns its result."""
        return await asyncio.to_thread(function, *args, **named)

    def thread(self, name: str, run: Callable[[], None]) -> StartedThread:
        """Call `run` on a daemon thread of this name. Supervisor.thread() handles the errors of `run`."""
        made = threading.Thread(target=run, name=name, daemon=True)
        made.start()
        return made

    def consumer(self, owner: "Supervisor", job: Job, consuming: Consuming[Any]) -> Consumer[Any]:
        """Return a queue whose items `consuming` takes, on a thread of its own. `owner` handles its errors."""
        return ThreadConsumer(owner, job, consuming)


SYSTEM = System()
"""The default of all parts that take a System."""
