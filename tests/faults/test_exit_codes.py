"""A server that has lost its journal's thread, its HTTP server or its gRPC server exits with 1."""

import asyncio
import contextlib
import subprocess

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import serving

PATIENCE = 20.0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["journal", "http", "rpc"])
async def test_a_server_without_a_part_exits_with_1(part, tmp_path):
    arguments = ("-m", "tests.faults.dying:agents", "--no-validate", "-p", "0", "--state-dir", str(tmp_path / "state"))
    with serving(*arguments) as (process, ready):
        async with CallbackTrainer(EchoPolicy()) as trainer, RolloutClient(ready["grpc"], timeout=PATIENCE) as client:

            async def ask():
                """Ask until the server answers no more: no caller waits for ever."""
                for number in range(1000):
                    await client.init(
                        rollout_id=f"r{number}",
                        agent_loop=part,
                        messages=[{"role": "user", "content": "x"}],
                        callback=trainer.callback(),
                    )
                    await asyncio.sleep(0.05)  # between two tries

            with contextlib.suppress(CallError):
                await asyncio.wait_for(ask(), PATIENCE)
            try:
                code = await asyncio.to_thread(process.wait, PATIENCE)
            except subprocess.TimeoutExpired:
                code = None
        assert code == 1
        assert "the agent server has failed" in process.stderr.read()
