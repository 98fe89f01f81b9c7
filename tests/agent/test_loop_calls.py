"""Calls to the event loop of a rollout from other threads and other event loops."""

import asyncio
import contextvars
import sys
import threading

import pytest

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop_calls import LoopCalls
from osmosis_grpc.agent.sync_waits import wait_in_task, with_sync_waits
from osmosis_grpc.protocol.errors import RolloutEndedError


async def test_a_call_runs_on_the_loop_from_a_thread_and_from_another_loop():
    calls = LoopCalls(asyncio.get_running_loop())

    async def on_the_loop():
        await asyncio.sleep(0)  # one turn of the event loop
        return asyncio.get_running_loop()

    async def fails():
        raise KeyError("x")

    def on_a_thread():
        assert not calls.here
        with pytest.raises(KeyError):
            calls.wait(fails)
        return calls.wait(on_the_loop), calls.call(asyncio.get_running_loop), asyncio.run(calls.ask(on_the_loop))

    assert calls.here
    assert set(await asyncio.to_thread(on_a_thread)) == {asyncio.get_running_loop()}
    assert await calls.ask(on_the_loop) is asyncio.get_running_loop()
    assert calls.call(lambda: 1) == 1


async def test_a_cancelled_caller_cancels_its_call():
    calls = LoopCalls(asyncio.get_running_loop())
    began, ended = asyncio.Event(), asyncio.Event()

    async def work():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def other_loop(cancel):
        task = asyncio.create_task(calls.ask(work))
        await asyncio.to_thread(cancel.result)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ready = asyncio.run_coroutine_threadsafe(began.wait(), asyncio.get_running_loop())
    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(other_loop(ready))))
    await ended.wait()
    await thread


async def test_after_the_end_every_call_is_refused():
    calls = LoopCalls(asyncio.get_running_loop())

    async def endless():
        calls.close()
        await asyncio.Event().wait()

    def on_a_thread():
        with pytest.raises(RolloutEndedError):
            calls.wait(endless)
        with pytest.raises(RolloutEndedError):
            calls.call(lambda: 1)

    await asyncio.to_thread(on_a_thread)


def test_a_closed_loop_refuses_calls():
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RolloutEndedError, match="the server has stopped"):
        LoopCalls(loop).call(lambda: 1)


class ThreadWatcher:
    """A session that keeps the thread of each call."""

    calls = None

    def __init__(self):
        self.seen = []

    def sample_names(self):
        self.seen.append(threading.current_thread())
        return ("main",)

    async def chat(self, messages, **options):
        self.seen.append(threading.current_thread())
        raise KeyError("no model")


@pytest.mark.row("SDK 33")
async def test_a_context_calls_its_session_on_the_event_loop_from_any_thread():
    session = ThreadWatcher()
    context = RolloutContext(session=session)

    def on_a_thread():
        assert context.samples == ("main",)
        with pytest.raises(KeyError):
            asyncio.run(context.chat([]))

    await asyncio.to_thread(on_a_thread)
    assert context.samples == ("main",)
    assert set(session.seen) == {threading.current_thread()}
    assert len(session.seen) == 3


variable = contextvars.ContextVar("variable", default=0)


async def later(value):
    await asyncio.sleep(0)  # one turn of the event loop
    return value


async def fails():
    await later(None)
    raise KeyError("x")


async def test_without_help_a_sync_wait_is_refused():
    with pytest.raises(RuntimeError, match=r"would block the event loop.*await agent.invoke_async\(\)"):
        wait_in_task(later(1))


async def test_without_greenlet_the_coroutine_runs_and_may_not_wait(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)
    assert await with_sync_waits(later(3)) == 3

    async def run():
        return wait_in_task(later(1))

    with pytest.raises(RuntimeError, match="greenlet is not installed"):
        await with_sync_waits(run())


@pytest.mark.adapters
async def test_other_tasks_run_while_a_sync_function_waits():
    pytest.importorskip("greenlet")
    open_gate = asyncio.Event()

    async def run(number):
        variable.set(number)
        if number == 2:
            open_gate.set()
        wait_in_task(open_gate.wait())
        with pytest.raises(KeyError):
            wait_in_task(fails())
        async with asyncio.timeout(20):
            inner = wait_in_task(with_sync_waits(later("inner")))
        return inner, variable.get(), await later("after")

    made = await asyncio.gather(*(with_sync_waits(run(number)) for number in range(3)))
    assert made == [("inner", number, "after") for number in range(3)]
    assert variable.get() == 0


@pytest.mark.adapters
async def test_a_cancel_and_an_error_pass_through():
    pytest.importorskip("greenlet")
    seen = []

    async def run():
        try:
            wait_in_task(asyncio.Event().wait())
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(with_sync_waits(run()))
    await later(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    with pytest.raises(KeyError):
        await with_sync_waits(fails())
