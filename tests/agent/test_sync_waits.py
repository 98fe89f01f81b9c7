"""Sync functions of a workflow's run() wait for the event loop. Needs greenlet."""

import asyncio
import contextvars
import sys

import pytest

from osmosis_grpc.agent.sync_waits import wait_in_task, with_sync_waits

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
