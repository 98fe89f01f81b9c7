"""The pool of threads: lost threads, and the callback at the start of a function."""

import asyncio
import logging
import threading

import pytest

from osmosis_grpc.supervise import DaemonThreads
from tests.waiting import until


@pytest.fixture
def release():
    """Ends the functions that block."""
    event = threading.Event()
    yield event
    event.set()


async def given_up(threads, release, count):
    """Let the pool lose threads: their functions run on, and their callers are cancelled."""
    begun = []
    calls = [asyncio.create_task(threads.run(lambda: release.wait(30), lambda: begun.append(1))) for _ in range(count)]
    await until(lambda: len(begun) == count)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_lost_threads_are_replaced_until_they_return(release):
    threads = DaemonThreads(2, replaced=2)
    await given_up(threads, release, 2)
    assert threads.lost == 2
    together = threading.Barrier(2, timeout=20)
    await asyncio.wait_for(asyncio.gather(*(threads.run(together.wait) for _ in range(2))), 20)
    release.set()
    await until(lambda: threads.lost == 0)
    names = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(names) <= 2
    threads.close()


async def test_a_pool_of_one_thread_never_runs_two_functions_at_once(release):
    threads = DaemonThreads(1)
    await given_up(threads, release, 1)
    begun = threading.Event()
    waiting = asyncio.create_task(threads.run(begun.set))
    assert not await asyncio.to_thread(begun.wait, 0.2)
    release.set()
    await waiting
    threads.close()


async def test_functions_that_wait_for_lost_threads_are_logged_once(release, caplog):
    threads = DaemonThreads(1, replaced=1, name="sync tools")
    with caplog.at_level(logging.WARNING):
        await given_up(threads, release, 1)
        await given_up(threads, release, 1)
        waiting = [asyncio.create_task(threads.run(int)) for _ in range(3)]
        await until(lambda: caplog.messages)
        release.set()
        assert await asyncio.gather(*waiting) == [0, 0, 0]
    (message,) = caplog.messages
    assert message == "sync tools: calls that wait for a thread: 1; threads with a call that was given up: 2 of 2"
    threads.close()


async def test_started_is_called_when_the_function_begins(release):
    threads, begun = DaemonThreads(1), []
    first = asyncio.create_task(threads.run(lambda: release.wait(30), lambda: begun.append("first")))
    second = asyncio.create_task(threads.run(int, lambda: begun.append("second")))
    await until(lambda: begun)
    assert begun == ["first"]
    release.set()
    assert await asyncio.gather(first, second) == [True, 0]
    assert begun == ["first", "second"]
    threads.close()
