"""Starts background work, handles its failures, and ends it. Work that can wait is done in small portions."""

import asyncio
import contextlib
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from osmosis_grpc.supervise.jobs import Job, OnFailure, raise_injected
from osmosis_grpc.supervise.system import SYSTEM, Backoff, StartedThread, System
from osmosis_grpc.supervise.unsupervised import BACKOFF, run_thread

log = logging.getLogger(__name__)

SHARE = 0.0005
"""A backlog runs calls for about this many seconds in each iteration of the event loop."""
PART = 0.25
"""If iterations are long, it runs calls for this part of the time since its last ones, so that it always advances."""


class Backlog:
    """Calls functions in the order of add(), a few in each iteration of the event loop. Belongs to one event loop.

    A chat reply takes several iterations to reach its agent. If many rollouts begin or end together, doing all their
    work in one iteration would delay every such reply. The number of queued calls is bounded by the rollouts and events
    in flight.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self._since = 0.0
        """The time at which the next calls were scheduled."""
        self._variables = contextvars.copy_context()
        """The context of the code that made the backlog. Each call gets a copy."""

    def add(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function soon. The function must handle its own errors.

        It runs with the context variables of the backlog's creator, so that none leak from one rollout to another.
        """
        self._calls.append((call, arguments))
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._scheduled, self._since = True, loop.time()
        loop.call_soon(self._work, context=self._variables.copy())

    def _work(self) -> None:
        time = asyncio.get_running_loop().time
        calls, began = self._calls, time()
        end = began + max(SHARE, PART * (began - self._since))
        try:
            for _ in range(len(calls)):
                call, arguments = calls.popleft()
                self._variables.copy().run(call, *arguments)
                if time() >= end:
                    break
        finally:
            self._scheduled = False
            if calls:
                self._schedule()


STABLE = 30.0
"""A job that ran for more than this many seconds before it failed restarts after the first, shortest pause."""

T = TypeVar("T")
Report = Callable[[BaseException], None]


class Supervisor:
    """Owns the background work of one server, trainer or gateway. Belongs to one event loop.

    `owner` is the name of the server, trainer or gateway in log lines. When the owner fails, the supervisor calls
    `on_failed` once on the event loop. `system` has the clocks, random numbers, ids and threads of the owner.
    """

    def __init__(self, owner: str, on_failed: Report | None = None, system: System = SYSTEM) -> None:
        self.owner = owner
        self.system = system
        self.failures: Counter[str] = Counter()
        """The number of failures of each job, by the job's name."""
        self.failure: BaseException | None = None
        """The error that made the owner fail, if it has failed."""
        self.failed_job = ""
        """The name of the job that raised `failure`."""
        self._on_failed: list[Report] = [on_failed] if on_failed is not None else []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """The running tasks, in the order of their starts. close() cancels them in this order."""
        self._closed = False
        self._backlog = Backlog()

    def add_listener(self, on_failed: Report) -> None:
        """Call `on_failed` when the owner fails, or at once if it has failed already."""
        self._on_failed.append(on_failed)
        if self.failure is not None:
            on_failed(self.failure)

    # Tasks.

    def start(
        self, job: Job, work: Callable[[], Awaitable[T]], report: Report | None = None
    ) -> "asyncio.Task[T | None]":
        """Run `work()` in a task, and handle an error as the job declares.

        `report` gets the error unless the job restarts. The task itself raises only CancelledError.
        """
        task = asyncio.get_running_loop().create_task(self._run(job, work, report), name=job.name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def every(self, job: Job, seconds: float, work: Callable[[], Any]) -> "asyncio.Task[None]":
        """Call `work()` every `seconds` seconds, and await its result if it is a coroutine.

        If a call raises, the error is logged and counted, and the next call follows after the same pause.
        """

        async def rerun() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    raise_injected(job)
                    result = work()
                    if asyncio.iscoroutine(result):
                        await result
                except Exception as error:
                    self._count(job, error, f"runs again in {seconds:g} s")

        return self.start(job, rerun)

    async def _run(self, job: Job, work: Callable[[], Awaitable[T]], report: Report | None) -> T | None:
        loop, backoff = asyncio.get_running_loop(), Backoff(*BACKOFF, system=self.system)
        while True:
            began = loop.time()
            try:
                raise_injected(job)
                return await work()
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if job.on_failure is not OnFailure.RESTART or not isinstance(error, Exception):
                    self.failed(job, error, report)
                    return None
                if loop.time() - began > STABLE:
                    backoff.reset()
                pause = backoff.next()
                self._count(job, error, f"runs again in {pause:.2f} s")
            await asyncio.sleep(pause)

    # Timers and callbacks.

    def call_later(
        self, job: Job, seconds: float, callback: Callable[..., None], *args: Any, report: Report | None = None
    ) -> asyncio.TimerHandle:
        """Run call() after a pause. Cancel the handle to prevent it."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), self._fire, job, callback, args, report)

    def _fire(self, job: Job, callback: Callable[..., None], args: tuple[Any, ...], report: Report | None) -> None:
        """Run call() at the end of a pause, unless the supervisor was closed meanwhile."""
        if not self._closed:
            self.call(job, callback, *args, report=report)

    def call(self, job: Job, callback: Callable[..., Any], *args: Any, report: Report | None = None) -> None:
        """Call `callback(*args)` now, and handle an error as the job declares."""
        try:
            raise_injected(job)
            callback(*args)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failed(job, error, report)

    def later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a function soon, in the order of the calls. See Backlog, which spreads many calls over time."""
        self._backlog.add(callback, *args)

    # Threads.

    def thread(self, job: Job, step: Callable[[], bool], report: Report | None = None) -> StartedThread:
        """Start a thread that calls `step()` until it returns False.

        If a step raises, the error is handled on the event loop as the job declares. With OnFailure.RESTART, the thread
        continues with the next step after a backoff; otherwise it ends.
        """
        loop = asyncio.get_running_loop()

        def on_error(error: BaseException, pause: float | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                if pause is None:
                    loop.call_soon_threadsafe(self.failed, job, error, report)
                else:
                    loop.call_soon_threadsafe(self._count, job, error, f"runs again in {pause:.1f} s")

        return run_thread(job, step, on_error, self.system)

    # Failures.

    def failed(self, job: Job, error: BaseException, report: Report | None = None) -> None:
        """Handle the failure of a job as the job declares it. Call it on the event loop."""
        needed = job.on_failure is not OnFailure.REPORT or report is None
        self._count(job, error, f"{self.owner} has failed" if needed else "")
        if report is not None:
            try:
                report(error)
            except Exception as second:  # if the report fails, the owner fails
                log.exception("%s: the failure of %s could not be reported, so it has failed", self.owner, job.name)
                error, needed = second, True
        if needed:
            self._fail(job, error)

    def _fail(self, job: Job, error: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_job = error, job.name
            for listener in list(self._on_failed):
                try:
                    listener(error)
                except Exception:
                    log.exception("%s: a listener to its failure raised", self.owner)

    def _count(self, job: Job, error: BaseException, consequence: str) -> None:
        self.failures[job.name] += 1
        log.error("%s: %s failed%s", self.owner, job.name, f"; {consequence}" if consequence else "", exc_info=error)

    async def close(self) -> None:
        """Cancel all tasks and wait until they end. Timers that are still pending do nothing.

        Threads are not stopped: they end when their step returns False.
        """
        self._closed = True
        mine = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
