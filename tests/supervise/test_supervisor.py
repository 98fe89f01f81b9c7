"""Background work: what a failure of each kind means."""

import asyncio
import threading

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.supervise import OnFailure, Supervisor
from tests.waiting import until

RESTARTED = supervise.job("test.restarted", OnFailure.RESTART)
NEEDED = supervise.job("test.needed", OnFailure.FAIL_OWNER)
REPORTED = supervise.job("test.reported", OnFailure.REPORT)
AWAITED = supervise.job("test.awaited", OnFailure.RAISE)
SWEPT = supervise.job("test.swept", OnFailure.RESTART)
TIMED = supervise.job("test.timed", OnFailure.REPORT, "timer")
THREADED = supervise.job("test.threaded", OnFailure.FAIL_OWNER, "thread")
RETHREADED = supervise.job("test.rethreaded", OnFailure.RESTART, "thread")


@pytest.fixture
async def supervisor():
    supervisor = Supervisor("the test")
    yield supervisor
    await supervisor.close()


async def test_a_failed_job_runs_again_and_is_logged(supervisor, caplog):
    runs = []

    async def work():
        runs.append(1)
        if len(runs) < 3:
            raise OSError("the disk")

    await asyncio.wait_for(supervisor.start(RESTARTED, work), 10)
    assert (len(runs), supervisor.failures["test.restarted"], supervisor.failure) == (3, 2, None)
    assert "test.restarted failed; runs again" in caplog.text
    assert "the disk" in caplog.text


async def test_a_job_that_the_owner_needs_fails_the_owner_once(supervisor, caplog):
    heard = []
    supervisor.add_listener(heard.append)

    async def work():
        raise OSError("the disk")

    for _ in range(2):
        await asyncio.wait_for(supervisor.start(NEEDED, work), 10)
    assert [str(error) for error in heard] == ["the disk"]
    assert "the test has failed" in caplog.text
    late = []
    supervisor.add_listener(late.append)
    assert late == heard


async def test_a_reported_failure_does_not_fail_the_owner(supervisor):
    reported = []

    async def work():
        raise ValueError("one rollout's")

    await asyncio.wait_for(supervisor.start(REPORTED, work, reported.append), 10)
    assert [str(error) for error in reported] == ["one rollout's"]
    assert supervisor.failure is None


async def test_a_report_that_raises_fails_the_owner(supervisor):
    async def work():
        raise ValueError("one rollout's")

    def report(error):
        raise KeyError("and this")

    await asyncio.wait_for(supervisor.start(REPORTED, work, report), 10)
    assert isinstance(supervisor.failure, KeyError)


async def test_a_repeated_call_continues_after_a_failure(supervisor):
    called = asyncio.Queue()

    def sweep():
        called.put_nowait(1)
        if called.qsize() == 1:
            raise OSError("the disk")

    supervisor.every(SWEPT, 0.001, sweep)
    await until(lambda: called.qsize() >= 3)
    assert supervisor.failures["test.swept"] == 1


async def test_a_timer_reports_and_is_silent_after_the_close(supervisor):
    reported, fired = asyncio.Queue(), []
    supervisor.call_later(TIMED, 0.0, lambda: 1 / 0, report=reported.put_nowait)
    assert isinstance(await asyncio.wait_for(reported.get(), 10), ZeroDivisionError)
    supervisor.call_later(TIMED, 0.0, fired.append, 1, report=reported.put_nowait)
    await supervisor.close()
    await asyncio.sleep(0.01)  # time for what must not come
    assert not fired


async def test_a_thread_that_dies_fails_its_owner(supervisor):
    failed = asyncio.Event()
    supervisor.add_listener(lambda error: failed.set())

    def step():
        raise MemoryError

    thread = supervisor.thread(THREADED, step)
    await asyncio.wait_for(failed.wait(), 10)
    await asyncio.to_thread(thread.join)


async def test_a_thread_may_be_restarted(supervisor):
    steps, ended = [], threading.Event()

    def step():
        steps.append(1)
        if len(steps) == 1:
            raise OSError
        ended.set()
        return False

    supervisor.thread(RETHREADED, step)
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_childs_error_is_raised_where_it_is_awaited():
    async def work():
        return 5

    assert await supervise.child(AWAITED, work()) == 5
    supervise.inject("test.awaited", OSError("injected"))
    with pytest.raises(OSError, match="injected"):
        await supervise.child(AWAITED, work())


async def test_every_kind_of_job_can_be_made_to_fail_once(supervisor):
    reported = []

    async def work():
        return None

    supervise.inject("test.reported", OSError("injected"))
    for _ in range(2):
        await asyncio.wait_for(supervisor.start(REPORTED, work, reported.append), 10)
    assert [str(error) for error in reported] == ["injected"]


async def test_cancelling_is_no_failure(supervisor):
    task = supervisor.start(NEEDED, asyncio.Event().wait)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert supervisor.failure is None


def test_names_are_unique_and_known():
    with pytest.raises(ValueError, match=r"test\.needed"):
        supervise.job("test.needed", OnFailure.RESTART)
    with pytest.raises(KeyError, match="nothing"):
        supervise.inject("nothing", OSError())
    assert supervise.declared()["test.needed"] is NEEDED
