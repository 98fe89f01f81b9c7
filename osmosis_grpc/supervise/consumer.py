"""A queue of items that one thread consumes."""

import asyncio
import queue
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from osmosis_grpc.supervise.jobs import Job

if TYPE_CHECKING:
    from osmosis_grpc.supervise.supervisor import Supervisor

Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)

AT_ONCE = 4096
"""One call of `consume` gets this many items at most."""


class StartedThread(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool:
        """Return whether the thread has not ended."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or for `timeout` seconds."""


class Consuming(Protocol[Taken]):
    """Consumes the items of a Consumer."""

    def consume(self, items: Sequence[Taken], /) -> None:
        """Consume items in their order, on the thread. `items` is empty after a timeout, and perhaps at the end."""

    def timeout(self) -> float:
        """Return how many seconds the thread waits for an item before it calls `consume` without items."""

    def died(self, error: BaseException, /) -> None:
        """Handle an error of `consume`, on the event loop. The thread has ended."""


class Consumer(Protocol[Item]):
    """A queue of items. Belongs to the event loop on which it was made."""

    @abstractmethod
    def put(self, item: Item) -> None:
        """Queue an item."""

    @abstractmethod
    def report(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, after all earlier reports. `consume` uses it."""

    @abstractmethod
    def end(self) -> None:
        """Wait until all queued items are consumed, and end the thread. Blocks. Nothing may be queued later."""

    @abstractmethod
    def take_left(self) -> list[Item]:
        """Remove and return the items that are not consumed, after an error of `consume`."""


class ThreadConsumer(Consumer[Item]):
    """Consumes the items on a thread of its own, all that wait at once."""

    def __init__(self, owner: "Supervisor", job: Job, consuming: Consuming[Item]) -> None:
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
