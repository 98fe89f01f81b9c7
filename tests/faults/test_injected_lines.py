"""An exception at one line of engine, server, journal, trainer or ledger leaves no rollout without an end.

The lines are drawn by a seed from those that an undisturbed run executes. If the agent server or the trainer has failed
then, both are started again on their journal and ledger, as a supervisor of processes would do.
"""

import asyncio
import contextlib
import os
import random
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.errors import OsmosisRolloutError
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.deployment import USER, deployment
from tests.faults.lines import Injected, executed, raising
from tests.waiting import until

FOLDERS = tuple(f"osmosis_grpc/{name}/" for name in ("engine", "server", "journal", "trainer"))
SEED = int(os.environ.get("OSMOSIS_SEED", "1"))
LINES = 40
PATIENCE = 20.0
"""Seconds after which a caller counts as one that waits for ever."""
ATTACHED = {"a1": "talk", "a2": "slow tools", "a3": "hangs"}
CALLED_BACK = {"c1": "talk", "c2": "slow tools", "c3": "hangs"}


class Rollouts:
    """Rollouts of an attached trainer with a ledger and of a callback trainer, at one agent server."""

    def __init__(self, deployed, trainer):
        self.deployed, self.server, self.trainer = deployed, deployed.server, trainer

    async def attached(self, rollout_id, agent_loop):
        """A rollout over the attachment: its completion, or the error that its caller gets."""
        return await self.trainer.rollout(
            rollout_id=rollout_id,
            agent_loop=agent_loop,
            messages=[USER],
            agent_timeout=0.5 if agent_loop == "hangs" else 30.0,
        )

    async def called_back(self, rollout_id, agent_loop):
        """Runs a rollout with a callback. Its Init is retried until it is accepted or refused for good."""
        return await self.deployed.run(rollout_id, agent_loop, agent_timeout=0.5 if agent_loop == "hangs" else 30.0)

    async def all_end(self):
        """Run all rollouts. Returns the names of those whose callers still wait after PATIENCE."""
        asked = {name: self.attached(name, loop) for name, loop in ATTACHED.items()}
        asked |= {name: self.called_back(name, loop) for name, loop in CALLED_BACK.items()}
        tasks = {name: asyncio.create_task(work) for name, work in asked.items()}
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
        async with deployment(folder / "state", policy=policy, timeout=PATIENCE / 3, **limits) as deployed:
            ledger = folder / "ledger.db"
            async with Trainer([deployed.server.address], policy, ledger=ledger, config=config) as trainer:
                yield Rollouts(deployed, trainer)


async def policy(request):
    await asyncio.sleep(0.01)  # the trainer's latency
    return answer(request, f"reply {request.number}", tokens=3)


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
async def test_x04_an_exception_at_any_of_four_lines_ends_every_rollout(tmp_path):
    (tmp_path / "undisturbed").mkdir()
    await run(tmp_path, 4)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_x04_an_exception_at_any_of_forty_lines_ends_every_rollout(tmp_path):
    (tmp_path / "undisturbed").mkdir()
    await run(tmp_path, LINES)
