"""What the watchdog reports: a callback that blocks the loop, and nothing else."""

import asyncio
import selectors
import time

import pytest

from osmosis_grpc.engine.watchdog import Watchdog
from osmosis_grpc.supervise import Supervisor

LIMIT = 0.05


class Starved(selectors.DefaultSelector):
    """Gets back from waiting too late, as on a machine that has no time for this process."""

    def select(self, timeout=None):
        time.sleep(6 * LIMIT)  # blocks the loop
        return super().select(0)


def watch(main, selector=selectors.DefaultSelector):
    """The watchdog after a coroutine that it watched."""
    watchdog = Watchdog(LIMIT)

    async def watched():
        watchdog.start(Supervisor("the test"))
        await main(watchdog)
        watchdog.stop()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector())) as runner:
        runner.run(watched())
    return watchdog


async def block(watchdog):
    time.sleep(6 * LIMIT)  # blocks the loop


async def wait_for_nothing(watchdog):
    for _ in range(4):
        await asyncio.sleep(0)


async def block_in_the_standard_library(watchdog):
    asyncio.get_running_loop().call_soon(time.sleep, 6 * LIMIT)
    await asyncio.sleep(0.001)  # the loop turns
    await asyncio.sleep(0)


async def block_while_it_starts(watchdog):
    watchdog.paused = True
    time.sleep(6 * LIMIT)  # blocks the loop
    watchdog.paused = False


def test_a_blocking_line_is_named():
    watchdog = watch(block)
    assert watchdog.blocked == 1
    assert watchdog.last == f"{__file__}:{block.__code__.co_firstlineno + 1} in block"


@pytest.mark.parametrize(
    ("main", "selector"), [(wait_for_nothing, Starved), (block_while_it_starts, selectors.DefaultSelector)]
)
def test_what_is_not_a_blocked_loop_is_not_reported(main, selector):
    assert watch(main, selector).blocked == 0


def test_the_program_that_runs_the_loop_is_never_named():
    watchdog = watch(block_in_the_standard_library)
    assert watchdog.blocked == 1
    assert watchdog.last.endswith(" in _run")
