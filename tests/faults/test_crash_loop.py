"""An agent that kills its server's process, and a supervisor that starts the server again and again."""

import asyncio
import sys

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.ports import quiet_port

AGENTS = """
import asyncio
import os

from osmosis_grpc.rollout import RolloutAgentLoop

USER = {"role": "user", "content": "go on"}


class Bystander(RolloutAgentLoop):
    name = "bystander"
    replayable = True

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = [USER]
        for _ in range(3):
            messages += [(await ctx.chat(messages)).message, USER]
        return ctx.complete(messages, reward=1.0)


class Killer(Bystander):
    name = "killer"

    async def run(self, ctx):
        if ctx.request.metadata.get("chats"):
            await ctx.chat([USER])
            await asyncio.sleep(0.05)  # until that is committed
        os._exit(9)


bystander, killer = Bystander(), Killer()
"""
PATIENCE = 100.0


class Supervisor:
    """Starts a server on one port and one folder again whenever it has ended."""

    def __init__(self, folder):
        self.address = f"127.0.0.1:{quiet_port()}"
        self.deaths = 0
        self._folder = folder
        self._task = None

    async def __aenter__(self):
        (self._folder / "agents.py").write_text(AGENTS)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self):
        command = [
            "-m",
            "osmosis_grpc.serve",
            "-m",
            "agents:bystander",
            "-m",
            "agents:killer",
            "--no-http",
            "--no-validate",
            "--grpc-port",
            self.address.rpartition(":")[2],
            "--state-dir",
            "state",
            "--log-level",
            "error",
        ]
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=self._folder, stdout=asyncio.subprocess.DEVNULL
            )
            try:
                assert await process.wait() == 9
                self.deaths += 1
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("chats", [0, pytest.param(1, marks=pytest.mark.long)], ids=["at once", "after a chat"])
async def test_an_agent_that_kills_its_process_ends_and_so_do_the_others(tmp_path, chats):
    """Its rollout ends FAILED (agent, CRASHED_SERVER) after some deaths; the bystander ones complete, at attempt 1."""

    async def slow(request):
        await asyncio.sleep(0.3)  # a slow trainer
        return answer(request, "go on")

    async with Supervisor(tmp_path) as supervisor, Trainer([supervisor.address], slow) as trainer:
        requests = [RolloutRequest(rollout_id=f"bystander-{n}", agent_loop="bystander") for n in range(5)]
        requests.insert(2, RolloutRequest(rollout_id="killer", agent_loop="killer", metadata={"chats": chats}))
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(*(trainer.rollout(request) for request in requests))
        assert 4 <= supervisor.deaths <= 5
    killed = outcomes.pop(2)
    assert (killed.status, killed.failure.boundary, killed.failure.retryable) == (OutcomeStatus.FAILED, "agent", False)
    assert killed.failure.reason is FailureReason.CRASHED_SERVER
    assert {(outcome.status, outcome.attempt) for outcome in outcomes} == {(OutcomeStatus.COMPLETED, 1)}
