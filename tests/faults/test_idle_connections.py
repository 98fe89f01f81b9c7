"""300 idle connections each to gRPC, HTTP and the metrics, against a server that may open 200 files."""

import asyncio
import json
import socket
from contextlib import ExitStack

import aiohttp
import grpc
import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.processes import serving

IDLE = 300
QUESTION = [{"role": "user", "content": "What is 2 plus 3?"}]
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
FEW_FILES = ("sh", "-c", 'ulimit -n 200; exec "$@"', "sh")


@pytest.mark.slow
async def test_idle_connections_keep_no_one_out(tmp_path):
    log, state = tmp_path / "log", tmp_path / "state"
    arguments = (*CALCULATOR, "-p", "0", "--metrics-port", "0", "--state-dir", str(state))
    with log.open("w") as lines, serving(*arguments, before=FEW_FILES, stderr=lines) as (process, ready):
        async with Trainer(ready["grpc"], ToolCallingMock()) as trainer:
            first = await trainer.rollout(RolloutRequest(rollout_id="before", messages=QUESTION))
            with ExitStack() as stack:
                for place in (ready["grpc"], ready["http"], ready["metrics"]) * IDLE:
                    host, _, port = place.rpartition(":")
                    stack.enter_context(socket.create_connection((host, int(port))))
                during = await trainer.rollout(RolloutRequest(rollout_id="during", messages=QUESTION))
                async with aiohttp.ClientSession() as session:
                    for path in (f"{ready['http']}/health", f"{ready['metrics']}/metrics"):
                        async with session.get(f"http://{path}") as answer:
                            assert answer.status == 200
                async with grpc.aio.insecure_channel(ready["grpc"]) as channel:  # after the handshakes time out
                    info = services_pb2_grpc.RolloutServiceStub(channel).GetServerInfo
                    await asyncio.wait_for(
                        info(control_pb2.GetServerInfoRequest(), wait_for_ready=True, timeout=100), 100
                    )
        assert (first.status, during.status) == ("COMPLETED", "COMPLETED")
        assert process.poll() is None
    logged = log.read_text().splitlines()
    assert [json.loads(line)["event"] for line in logged if "oldest idle one" in line]
    assert len(logged) < 20
