"""Work that can wait: its order, its share of an iteration, and its errors."""

import asyncio
import contextvars

from osmosis_grpc.supervise.supervisor import SHARE, Backlog
from tests.network.virtual_time import virtually

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
