"""Starts background work without a Supervisor: tasks that a caller awaits, and work outside servers and trainers."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from osmosis_grpc.supervise.jobs import Job, OnFailure, injected, raise_injected
from osmosis_grpc.supervise.system import SYSTEM, Backoff, StartedThread, System

log = logging.getLogger(__name__)

BACKOFF = 0.1, 10.0
"""The first and the longest pause, in seconds, before a failed job runs again."""

failures: Counter[str] = Counter()
"""The number of failures of each job without a Supervisor, by name. Jobs with OnFailure.RAISE are not counted."""

T = TypeVar("T")


def child(job: Job, work: Coroutine[Any, Any, T], **options: Any) -> "asyncio.Task[T]":
    """Return a task that the caller awaits and that raises its error there (OnFailure.RAISE).

    `options` are those of create_task. By default, the task has the job's name.
    """
    error = injected(job)
    if error is not None:
        work.close()
        work = cast("Coroutine[Any, Any, T]", _raise(error))
    options.setdefault("name", job.name)
    return asyncio.get_running_loop().create_task(work, **options)


def future(job: Job, work: Awaitable[T]) -> "asyncio.Future[T]":
    """Return a future that the caller awaits: `work` itself if it is one, else a child()."""
    if asyncio.isfuture(work):
        return work
    return child(job, work if asyncio.iscoroutine(work) else _await(work))


def thread(job: Job, step: Callable[[], bool], failed: Callable[[BaseException], None] | None = None) -> StartedThread:
    """Call `step()` on a daemon thread until it returns False.

    If a step raises, the error is logged and counted. With OnFailure.RESTART, the thread continues with the next step
    after a backoff; otherwise it calls `failed` with the error, and ends.
    """

    def on_error(error: BaseException, pause: float | None) -> None:
        _count(job, error, "" if pause is None else f"; runs again in {pause:.1f} s")
        if pause is None and failed is not None:
            failed(error)

    return run_thread(job, step, on_error, SYSTEM)


def _count(job: Job, error: BaseException, consequence: str = "") -> None:
    failures[job.name] += 1
    log.error("%s failed%s", job.name, consequence, exc_info=error)


def run_thread(
    job: Job, step: Callable[[], bool], on_error: Callable[[BaseException, float | None], None], system: System
) -> StartedThread:
    """Start a thread that calls `step()` until it returns False.

    After an error, the thread calls `on_error` with the error and the seconds until the next step, or with None instead
    of seconds, and then ends.
    """

    def run() -> None:
        backoff = Backoff(*BACKOFF, system=system)
        while True:
            try:
                raise_injected(job)
                if not step():
                    return
                backoff.reset()
            except BaseException as error:
                pause = backoff.next() if job.on_failure is OnFailure.RESTART else None
                on_error(error, pause)
                if pause is None:
                    return
                time.sleep(pause)

    return system.thread(job.name, run)


def call_later(job: Job, seconds: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
    """Call `callback(*args)` after a pause. An error is logged and counted. Cancel the handle to prevent the call."""

    def fire() -> None:
        try:
            raise_injected(job)
            callback(*args)
        except Exception as error:
            _count(job, error)

    return asyncio.get_running_loop().call_later(max(0.0, seconds), fire)


async def _raise(error: BaseException) -> None:
    raise error


async def _await(work: Awaitable[T]) -> T:
    return await work
