"""Calls code on the server's event loop, from any thread and from other event loops."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from osmosis_grpc.agent.ports import Session
from osmosis_grpc.agent.sync_waits import wait_in_task
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job

CALL = job("agent.sync_call", OnFailure.RAISE)

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
"""Returns the coroutine to run. It is called on the event loop."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread; None if none runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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
        return running_loop() is self.loop

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
        """End all current and later calls with RolloutEndedError. Called on the event loop."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Work[T]) -> "Future[T]":
        run = self._run(work)
        try:
            return asyncio.run_coroutine_threadsafe(run, self.loop)
        except RuntimeError:  # the event loop is closed
            run.close()
            raise RolloutEndedError("the server has stopped") from None

    async def _run(self, work: Work[T]) -> T:
        if self._closed:
            raise RolloutEndedError("the rollout has ended")
        task = child(CALL, work())
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:  # the waiting thread expects another exception
            raise RolloutEndedError("the rollout has ended") from None
        finally:
            self._tasks.discard(task)


class OtherThreadSession:
    """A session for code on other threads and in other event loops, for example for sync tools and their sub-agents.

    It calls each method on the event loop of the rollout, and waits for its result.
    """

    def __init__(self, session: Session, loop_calls: LoopCalls) -> None:
        self._session = session
        self._loop_calls = loop_calls
        self.calls = session.calls

    async def chat(self, *args: Any, **kwargs: Any) -> Any:
        """Return a reply, see Session.chat."""
        return await self._loop_calls.ask(lambda: self._session.chat(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._session, name)
        if not callable(method):
            return method
        return lambda *args, **kwargs: self._loop_calls.call(lambda: method(*args, **kwargs))
