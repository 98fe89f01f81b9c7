"""Background work: what a failure of each kind means, work that can wait, and warnings that come many times."""

import asyncio
import contextvars
import logging
import threading

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.supervise import OnFailure, Supervisor
from osmosis_grpc.supervise.supervisor import SHARE, Backlog
from osmosis_grpc.supervise.throttled_log import EVERY, Throttled
from tests.network.virtual_time import virtually
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


WHOSE = contextvars.ContextVar("WHOSE")


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time only a test moves."""

    now = 0.0

    def time(self):
        return self.now


async def per_iteration(call_seconds, other_seconds):
    """Make 40 calls of this length. Returns how many are made in each iteration beside other work."""
    loop, backlog, done, made = asyncio.get_running_loop(), Backlog(), [], []

    def call(number):
        loop.now += call_seconds
        done.append(number)

    for number in range(40):
        backlog.add(call, number)
    while len(done) < 40:
        before = len(done)
        loop.now += other_seconds
        await asyncio.sleep(0)
        made.append(len(done) - before)
    assert done == list(range(40))
    return made


def test_calls_are_spread_over_iterations():
    with asyncio.Runner(loop_factory=Clock) as runner:
        assert runner.run(per_iteration(SHARE, 0.0)) == [1] * 40
        assert runner.run(per_iteration(SHARE / 4, 0.0)) == [4] * 10


def test_long_iterations_do_not_stop_the_progress():
    with asyncio.Runner(loop_factory=Clock) as runner:
        assert runner.run(per_iteration(SHARE, 40 * SHARE)) == [10] * 4


@virtually
async def test_short_calls_are_made_together_and_a_call_that_they_add_comes_later():
    backlog, done = Backlog(), []
    for number in range(100):
        backlog.add(done.append, number)
    backlog.add(backlog.add, done.append, 100)
    await asyncio.sleep(0)
    assert done == list(range(100))
    await asyncio.sleep(0)
    assert done == list(range(101))


@virtually
async def test_a_call_can_add_another_one():
    backlog, done = Backlog(), asyncio.Event()
    backlog.add(backlog.add, done.set)
    await done.wait()


@virtually
async def test_an_error_reaches_the_event_loop_and_the_other_calls_are_made():
    backlog, done, errors = Backlog(), asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    backlog.add({}.pop, "a bug")
    backlog.add(done.set)
    await done.wait()
    assert [type(error) for error in errors] == [KeyError]


@virtually
async def test_a_call_has_the_context_of_the_backlog_and_not_of_its_caller_or_of_an_earlier_call():
    WHOSE.set("the server's")
    backlog, seen, done = Backlog(), [], asyncio.Event()
    WHOSE.set("one rollout's")
    backlog.add(lambda: seen.append(WHOSE.get()))
    backlog.add(WHOSE.set, "another rollout's")
    backlog.add(lambda: seen.append(WHOSE.get()))
    backlog.add(done.set)
    await done.wait()
    assert seen == ["the server's", "the server's"]


def test_warnings_are_counted_between_two_lines(caplog):
    now = [0.0]
    warnings = Throttled(logging.getLogger("some.name"), clock=lambda: now[0])
    for seconds in (0.0, 0.1, EVERY - 0.1, EVERY, EVERY + 0.1, 2 * EVERY, 4 * EVERY):
        now[0] = seconds
        warnings.warn(f"100% bad at {seconds:g}")
    assert [record.getMessage() for record in caplog.records] == [
        "100% bad at 0",
        f"100% bad at {EVERY:g} (and 2 more since the last such line)",
        f"100% bad at {2 * EVERY:g} (and 1 more since the last such line)",
        f"100% bad at {4 * EVERY:g}",
    ]
