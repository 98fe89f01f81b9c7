"""A pool of daemon threads for functions that block. A function that never returns does not keep the process alive."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from osmosis_grpc.supervise.jobs import OnFailure, job
from osmosis_grpc.supervise.unsupervised import thread

WORK = job("supervise.work", OnFailure.RESTART, "thread")

T = TypeVar("T")

_Job = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """Runs up to `count` threads. A thread starts when a function comes and every other thread is busy."""

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"threads: {count} is less than 1")
        self._count = count
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._unfinished = 0
        """The number of functions that wait or run."""

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function on a thread, in the order of the calls. Cancelling does not stop a running function."""
        future: Future[T] = Future()
        with self._lock:
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._count):
                jobs = self._jobs
                self._threads.append(thread(WORK, lambda: self._work(jobs)))
            self._jobs.put((future, function))
        return await asyncio.wrap_future(future)

    @property
    def busy(self) -> int:
        """The number of functions that wait or run."""
        return self._unfinished

    def close(self) -> None:
        """End the threads after the queued functions. run() starts new threads."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads, self._jobs = [], SimpleQueue()

    def _work(self, jobs: "SimpleQueue[_Job | None]") -> bool:
        """Call one function on this thread. Return False to end the thread."""
        job = jobs.get()
        if job is None:
            return False
        future, function = job
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(function())
        except StopIteration as stop:  # an asyncio future takes no StopIteration
            future.set_exception(RuntimeError(f"the function raised {stop!r}"))
        except BaseException as error:
            future.set_exception(error)
        finally:
            with self._lock:
                self._unfinished -= 1
        return True
