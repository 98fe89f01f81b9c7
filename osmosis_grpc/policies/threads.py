"""Runs blocking functions, for example sync policies, on daemon threads.

The threads are daemons, so that a function that never returns does not keep the process alive.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from osmosis_grpc.supervise import OnFailure, job, thread
from osmosis_grpc.types import ChatRequest, ChatResponse

WORK = job("policies.work", OnFailure.RESTART, "thread")

T = TypeVar("T")

_Job = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """Runs up to `count` threads. Each waiting caller has one job in the queue."""

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"threads: {count} is less than 1")
        self._count = count
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function on a thread, in the order of the calls. Cancelling does not stop the function."""
        future: Future[T] = Future()
        self._jobs.put((future, function))
        if len(self._threads) < self._count:
            jobs = self._jobs
            self._threads.append(thread(WORK, lambda: _work(jobs)))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the threads after the queued jobs. run() starts new ones."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads, self._jobs = [], SimpleQueue()


class ThreadedPolicy:
    """Calls a sync policy on its own threads, so that it does not block the event loop.

        Trainer(servers, ThreadedPolicy(policy, threads=16))

    With one thread, the default, the policy has one call at a time and needs no locks.
    """

    def __init__(
        self, policy: Callable[[ChatRequest], ChatResponse | Awaitable[ChatResponse]], *, threads: int = 1
    ) -> None:
        check_policy(policy)
        self._policy = policy
        self.cancel: Callable[[ChatRequest], object] | None = getattr(policy, "cancel", None)
        """The policy's `cancel` hook, see Policy; None if it has none."""
        self._threads = DaemonThreads(threads)
        self._users = 0

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        reply = await self._threads.run(lambda: self._policy(request))
        return reply if isinstance(reply, ChatResponse) or not inspect.isawaitable(reply) else await reply

    async def __aenter__(self) -> "ThreadedPolicy":
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if not self._users:
            self._threads.close()


def check_policy(policy: object) -> None:
    """Raise TypeError for a policy that is not callable."""
    if not callable(policy):
        raise TypeError(
            f"policy: {policy!r:.80} is not callable; pass a function from ChatRequest to ChatResponse, "
            "for example EchoPolicy()"
        )


def is_async(policy: Callable[..., Any]) -> bool:
    """Return whether a callable is an async function or has an async __call__."""
    return inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(getattr(policy, "__call__", None))  # noqa: B004


def _work(jobs: "SimpleQueue[_Job | None]") -> bool:
    """Run one job on this thread. Return False to end the thread."""
    job = jobs.get()
    if job is None:
        return False
    future, function = job
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except StopIteration as stop:  # an asyncio future takes no StopIteration
            future.set_exception(RuntimeError(f"the function raised {stop!r}"))
        except BaseException as error:
            future.set_exception(error)
    return True
