"""The clocks, random numbers, ids and threads of this machine.

Servers, trainers, journals and ledgers use them only through `Supervisor.system`, so that a test that replaces the
System controls the time, the order and every id. scripts/lint.py checks this.
"""

import asyncio
import os
import queue
import random
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

from osmosis_grpc.supervise.jobs import Job

Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)

AT_ONCE = 4096
"""The most items of one call of `consume`."""


class StartedThread(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool:
        """Return whether the thread is running."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or for `timeout` seconds."""


class Owner(Protocol):
    """The methods of a Supervisor that a Consumer uses."""

    def thread(
        self, job: Job, step: Callable[[], bool], report: Callable[[BaseException], None] | None = None
    ) -> StartedThread:
        """See Supervisor.thread."""

    def failed(self, job: Job, error: BaseException, report: Callable[[BaseException], None] | None = None) -> None:
        """See Supervisor.failed."""


class Consuming(Protocol[Taken]):
    """Consumes the items of a Consumer."""

    def consume(self, items: Sequence[Taken], /) -> None:
        """Consume items in their order, on the thread. `items` is empty after a timeout, and possibly at the end."""

    def timeout(self) -> float:
        """Return how many seconds the thread waits for an item before it calls `consume` without items."""

    def died(self, error: BaseException, /) -> None:
        """Handle an error of `consume`, which has ended the thread. Called on the event loop."""


class Consumer(Protocol[Item]):
    """A queue of items. Belongs to the event loop on which it was made."""

    @abstractmethod
    def put(self, item: Item) -> None:
        """Queue an item."""

    @abstractmethod
    def report(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, after all earlier reports. For use in `consume`."""

    @abstractmethod
    def end(self) -> None:
        """Wait until all queued items are consumed, and end the thread. Blocks. Don't queue anything afterwards."""

    @abstractmethod
    def take_left(self) -> list[Item]:
        """Remove and return the items that are left after an error of `consume`."""


class ThreadConsumer(Consumer[Item]):
    """Consumes items on a thread of its own, in batches of all that are queued."""

    def __init__(self, owner: Owner, job: Job, consuming: Consuming[Item]) -> None:
        self._loop = asyncio.get_running_loop()
        self._consuming = consuming
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._taken: list[Item] = []
        """The items that the thread is consuming."""
        self._thread = owner.thread(job, self._step, consuming.died)

    def put(self, item: Item) -> None:
        self._queue.put(item)

    def report(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def end(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def take_left(self) -> list[Item]:
        items, self._taken = self._taken, []
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    items.append(item)
        return items

    def _step(self) -> bool:
        """Consume once, on the thread. Returns False after the last item."""
        closing = False
        items: list[Item] = []
        self._taken = items
        with suppress(queue.Empty):
            item = self._queue.get(timeout=self._consuming.timeout())
            while item is not None:
                items.append(item)
                if len(items) == AT_ONCE or self._queue.empty():
                    break
                item = self._queue.get()
            closing = item is None
        self._consuming.consume(items)
        self._taken = []
        return not closing


P = ParamSpec("P")
R = TypeVar("R")


class System:
    """This machine. Tests replace some or all attributes in a subclass."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Returns seconds that never decrease. Code that calls it often keeps a reference to the function."""
    time: Callable[[], float] = staticmethod(time.time)
    """Returns Unix seconds."""
    uniform: Callable[[float, float], float] = staticmethod(random.uniform)
    """Returns a random number between two numbers."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def new_id(self) -> str:
        """Return a unique id of 32 hexadecimal digits, which random.seed() does not affect."""
        return os.urandom(16).hex()

    def new_secret(self) -> str:
        """Return 192 random bits that nobody can guess, as 32 URL-safe characters."""
        return secrets.token_urlsafe(24)

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Call a blocking function on a thread, and return its result."""
        return await asyncio.to_thread(function, *args, **named)

    def thread(self, name: str, run: Callable[[], None]) -> StartedThread:
        """Call `run` on a daemon thread of this name. Supervisor.thread() handles the errors of `run`."""
        made = threading.Thread(target=run, name=name, daemon=True)
        made.start()
        return made

    def consumer(self, owner: Owner, job: Job, consuming: Consuming[Any]) -> Consumer[Any]:
        """Return a queue whose items `consuming` consumes on a thread of its own. `owner` handles its errors."""
        return ThreadConsumer(owner, job, consuming)


SYSTEM = System()
"""The default wherever a System can be passed."""


class Backoff:
    """Exponential backoff: pauses that double from `first` up to `longest` seconds.

    Each pause is shortened at random by up to a half, so that many clients do not retry at the same moment.
    """

    __slots__ = ("_first", "_longest", "_pause", "_uniform")

    def __init__(self, first: float, longest: float, *, system: System) -> None:
        self._first = self._pause = first
        self._longest = longest
        self._uniform = system.uniform

    @property
    def limit(self) -> float:
        """The upper limit of the next pause."""
        return self._pause

    def next(self) -> float:
        """Return the next pause, and make the pause after it longer."""
        pause, self._pause = self._pause, min(self._longest, self._pause * 2)
        return pause * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Return to the first pause."""
        self._pause = self._first
