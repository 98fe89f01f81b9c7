"""Work that can wait: its order, its share of an iteration, and its errors."""

import asyncio
import contextvars
import time

from osmosis_grpc.supervise import backlog as backlog_module
from osmosis_grpc.supervise.backlog import SHARE, Backlog
from tests.link.virtual_time import run_virtually

WHOSE = contextvars.ContextVar("WHOSE")


def test_calls_that_take_the_whole_share_are_spread_over_iterations(monkeypatch):
    monkeypatch.setattr(backlog_module, "SHARE", 0.0)

    async def main():
        backlog, done, seen = Backlog(), [], []
        for number in range(3):
            backlog.add(done.append, number)
        while len(done) < 3:
            seen.append(len(done))
            await asyncio.sleep(0)
        assert (seen, done) == ([0, 1, 2], [0, 1, 2])

    run_virtually(main())


def test_short_calls_are_made_together_and_a_call_that_they_add_comes_later():
    async def main():
        backlog, done = Backlog(), []
        for number in range(100):
            backlog.add(done.append, number)
        backlog.add(backlog.add, done.append, 100)
        await asyncio.sleep(0)
        assert done == list(range(100))
        await asyncio.sleep(0)
        assert done == list(range(101))

    run_virtually(main())


async def test_long_iterations_do_not_stop_the_progress():
    backlog, done, per_iteration = Backlog(), [], []

    def work(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    def call():
        work(SHARE / 2)
        done.append(None)

    for _ in range(200):
        backlog.add(call)
    while len(done) < 200:
        before = len(done)
        work(100 * SHARE)
        await asyncio.sleep(0)
        per_iteration.append(len(done) - before)
    assert max(per_iteration) > 10, "more than the share, which two calls fill"


def test_a_call_can_add_another_one():
    async def main():
        backlog, done = Backlog(), asyncio.Event()
        backlog.add(backlog.add, done.set)
        await done.wait()

    run_virtually(main())


def test_an_error_reaches_the_event_loop_and_the_other_calls_are_made():
    async def main():
        backlog, done, errors = Backlog(), asyncio.Event(), []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        backlog.add({}.pop, "a bug")
        backlog.add(done.set)
        await done.wait()
        assert [type(error) for error in errors] == [KeyError]

    run_virtually(main())


def test_a_call_has_the_context_of_the_backlog_and_not_of_its_caller_or_of_an_earlier_call():
    async def main():
        WHOSE.set("the server's")
        backlog, seen, done = Backlog(), [], asyncio.Event()
        WHOSE.set("one rollout's")
        backlog.add(lambda: seen.append(WHOSE.get()))
        backlog.add(WHOSE.set, "another rollout's")
        backlog.add(lambda: seen.append(WHOSE.get()))
        backlog.add(done.set)
        await done.wait()
        assert seen == ["the server's", "the server's"]

    run_virtually(main())
