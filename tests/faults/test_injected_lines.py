"""An exception at one line of engine, server, journal, trainer or ledger leaves no rollout without an end.

The lines are drawn by a seed from those that an undisturbed run executes. If the agent server or the trainer has failed
then, both are started again on their journal and ledger, as a supervisor of processes would do.
"""

import asyncio
import contextlib
import os
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.deployment import USER, deployment
from tests.faults.lines import Injected, executed, raising
from tests.waiting import until

FOLDERS = tuple(f"osmosis_grpc/{name}/" for name in ("engine", "server", "storage", "trainer"))
SEED = int(os.environ.get("OSMOSIS_SEED", "1"))
LINES = 40
PATIENCE = 20.0
"""Seconds after which a caller counts as one that waits for ever."""
ROLLOUTS = {
    "attach": {"a1": "talk", "a2": "slow tools", "a3": "hangs"},
    "callback": {"c1": "talk", "c2": "slow tools", "c3": "hangs"},
}
"""Agent loops by transport and rollout id."""


class Rollouts:
    """Rollouts of two trainers with ledgers, one of each transport, at one agent server."""

    def __init__(self, server, trainers):
        self.server, self.trainers = server, trainers

    async def rollout(self, transport, rollout_id, agent_loop):
        """Returns a rollout's outcome. Raises the error that its caller gets."""
        return await self.trainers[transport].rollout(
            rollout_id=rollout_id,
            agent_loop=agent_loop,
            messages=[USER],
            agent_timeout=0.5 if agent_loop == "hangs" else 30.0,
        )

    async def all_end(self):
        """Run all rollouts. Returns the names of those whose callers still wait after PATIENCE."""
        tasks = {
            name: asyncio.create_task(self.rollout(transport, name, agent_loop))
            for transport, names in ROLLOUTS.items()
            for name, agent_loop in names.items()
        }
        done, waiting = await asyncio.wait(tasks.values(), timeout=PATIENCE)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, OsmosisRolloutError | Injected):
                raise error
        return sorted(name for name, task in tasks.items() if task in waiting)

    @property
    def failed(self):
        """Whether a process of its own would have ended with exit code 1."""
        return self.server.supervisor.failure is not None

    async def unended(self):
        """How many rollouts of each agent loop have not ended after a while."""
        with contextlib.suppress(AssertionError):
            await until(lambda: not self.server.engine.rollouts.in_flight(), timeout=10)
        return dict(self.server.engine.rollouts.in_flight())


@asynccontextmanager
async def rollouts(folder):
    """Yields Rollouts whose journal and ledger are in `folder`."""
    config = TrainerConfig(lost_after=5.0, longest_pause=0.5)
    limits = {"trainer_grace": 5.0, "get_tools_timeout": 3.0, "chat_silence": 2.0}
    with contextlib.suppress(Injected):
        async with deployment(folder / "state", **limits) as deployed, AsyncExitStack() as stack:
            trainers = {}
            for transport in ROLLOUTS:
                ledger = folder / f"{transport}.db"
                trainer = Trainer(deployed.server.address, policy, transport=transport, ledger=ledger, config=config)
                trainers[transport] = await stack.enter_async_context(trainer)
            yield Rollouts(deployed.server, trainers)


async def policy(request):
    await asyncio.sleep(0.01)  # the trainer's latency
    return answer(request, f"reply {request.chat_number}", tokens=3)


async def known_lines(folder):
    """The lines that rollouts execute while nothing is wrong."""
    async with rollouts(folder) as running:
        with executed(FOLDERS) as seen:
            assert await running.all_end() == []
    return sorted(seen)


async def inject(folder, line):
    """Raise at this line. Returns what is wrong after that, an empty text when nothing is."""
    async with rollouts(folder) as running:
        with raising(line) as fired:
            waiting = await running.all_end()
        failed = running.failed
        unended = {} if failed else await running.unended()
    if failed:
        async with rollouts(folder) as running:
            waiting, unended = await running.all_end(), await running.unended()
    if waiting or unended:
        return f"{line[0]}:{line[1]} in {fired}: {waiting} wait, {unended} have no end, failed {failed}"
    return ""


async def run(folder, count, seed=SEED):
    lines = await known_lines(folder / "undisturbed")
    drawn = random.Random(seed).sample(lines, count)
    wrong = []
    for number, line in enumerate(drawn):
        (folder / str(number)).mkdir()
        wrong.append(await inject(folder / str(number), line))
    assert [text for text in wrong if text] == [], f"seed {seed}"


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_an_exception_at_any_of_four_lines_ends_every_rollout(tmp_path):
    (tmp_path / "undisturbed").mkdir()
    await run(tmp_path, 4)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_an_exception_at_any_of_forty_lines_ends_every_rollout(tmp_path):
    (tmp_path / "undisturbed").mkdir()
    await run(tmp_path, LINES)
