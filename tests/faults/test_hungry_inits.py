"""Inits whose metadata takes many times its text in memory."""

import os
from pathlib import Path

import grpc
import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2_grpc
from tests.callback_trainer import CallbackTrainer
from tests.processes import server_process

AGENT = """
import asyncio

from osmosis_grpc.rollout import RolloutAgentLoop


class Waits(RolloutAgentLoop):
    name = "waits"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await asyncio.Event().wait()


agent_loop = Waits()
"""
INITS = 40
METADATA = '{"a":[' + ",".join(["[]"] * 340_000) + "]}"
"""Nearly 1 MiB."""


def resident(process):
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_metadata_that_no_agent_reads_is_not_parsed(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    arguments = ["-m", "agents:agent_loop", "--state-dir", "state", "--drain-timeout", "0"]
    with server_process(*arguments, cwd=tmp_path) as (process, address):
        async with CallbackTrainer(EchoPolicy()) as trainer, grpc.aio.insecure_channel(address) as channel:
            init = services_pb2_grpc.RolloutServiceStub(channel).Init
            callback = rollout_pb2.Callback(target=trainer.callback().target)
            await init(rollout_pb2.InitRequest(rollout_id="first", callback=callback))
            before = resident(process)
            for number in range(INITS):
                spec = rollout_pb2.RolloutSpec(metadata_json=METADATA)
                request = rollout_pb2.InitRequest(rollout_id=f"r{number}", spec=spec, callback=callback)
                assert (await init(request)).created
            grown = resident(process) - before
    assert grown < INITS * 8 * 1024 * 1024, f"{grown / INITS / 1e6:.1f} MB for each"
