"""Work that can wait: its order, its share of an iteration, and its errors."""

import asyncio
import contextvars

from osmosis_grpc.supervise import backlog as backlog_module
from osmosis_grpc.supervise.backlog import MOST, Backlog
from tests.link.virtual_time import run_virtually

WHOSE = contextvars.ContextVar("WHOSE", default="nobody's")


def test_calls_keep_their_order_and_other_callbacks_run_in_between():
    async def main():
        backlog, done, seen = Backlog(), [], []
        for number in range(3 * MOST):
            backlog.add(done.append, number)
        while len(done) < 3 * MOST:
            seen.append(len(done))
            await asyncio.sleep(0)
        assert done == list(range(3 * MOST))
        assert seen == [0, MOST, 2 * MOST]

    run_virtually(main())


def test_calls_that_take_the_whole_share_are_spread_over_iterations(monkeypatch):
    monkeypatch.setattr(backlog_module, "SHARE", 0.0)

    async def main():
        backlog, done, seen = Backlog(), [], []
        for number in range(3):
            backlog.add(done.append, number)
        while len(done) < 3:
            seen.append(len(done))
            await asyncio.sleep(0)
        assert seen == [0, 1, 2]

    run_virtually(main())


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


def test_a_call_does_not_get_the_context_of_the_caller():
    async def main():
        backlog, seen, done = Backlog(), [], asyncio.Event()
        WHOSE.set("one rollout's")
        backlog.add(lambda: seen.append(WHOSE.get()))
        backlog.add(done.set)
        await done.wait()
        assert seen == ["nobody's"]

    run_virtually(main())
