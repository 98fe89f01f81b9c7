"""Calls code on the server's event loop, from any thread and from other event loops."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from osmosis_grpc.agent.sync_waits import wait_in_task
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job

CALL = job("agent.sync_call", OnFailure.RAISE)

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
"""Returns the coroutine to run. It is called on the event loop."""


class LoopCalls:
    """The calls to one event loop, of the code of one rollout. Several threads may call at once."""

    __slots__ = ("_closed", "_tasks", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        """The calls for which other threads wait. Only the event loop changes the set."""
        self._closed = False

    @property
    def here(self) -> bool:
        """Whether this code runs on the event loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    async def ask(self, work: Work[T]) -> T:
        """Return the result of a coroutine that runs on the event loop. Raises its exception, and RolloutEndedError.

        If the caller is cancelled, the coroutine is cancelled.
        """
        if self.here:
            return await work()
        return await asyncio.wrap_future(self._start(work))

    def wait(self, work: Work[T]) -> T:
        """Wait for the result of a coroutine that runs on the event loop. Raises its exception, and RolloutEndedError.

        On the event loop, this raises RuntimeError unless the task may wait, see sync_waits.py.
        """
        if self.here:
            return wait_in_task(work())
        return self._start(work).result()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the event loop, and return its result."""
        if self.here:
            return function()

        async def call() -> T:
            return function()

        return self._start(call).result()

    def close(self) -> None:
        """End every call, and each later one, with RolloutEndedError. Called on the event loop."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Work[T]) -> "Future[T]":
        future: Future[T] = Future()
        variables = contextvars.copy_context()
        try:
            self.loop.call_soon_threadsafe(partial(self._begin, work, variables, future))
        except RuntimeError:  # the event loop is closed
            raise RolloutEndedError("the server has stopped") from None
        return future

    def _begin(self, work: Work[T], variables: contextvars.Context, future: "Future[T]") -> None:
        if self._closed:
            future.set_exception(RolloutEndedError("the rollout has ended"))
            return
        try:
            task = child(CALL, work(), context=variables)
        except BaseException as error:  # `work` raised, or returned no coroutine; the thread would wait for ever
            future.set_exception(error)
            return
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, future))
        future.add_done_callback(partial(self._left, task))

    def _left(self, task: "asyncio.Task[T]", future: "Future[T]") -> None:
        if future.cancelled():
            self.loop.call_soon_threadsafe(task.cancel)

    def _done(self, future: "Future[T]", task: "asyncio.Task[T]") -> None:
        self._tasks.discard(task)
        if future.cancelled() or not future.set_running_or_notify_cancel():
            return
        if task.cancelled():
            future.set_exception(RolloutEndedError("the rollout has ended"))
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
