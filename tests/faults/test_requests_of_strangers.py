"""Large requests of callers who show no credential: they are refused before anything of them is read."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2, services_pb2_grpc
from tests.callback_trainer import CallbackTrainer
from tests.processes import ROOT, server_process

pytestmark = pytest.mark.slow

MIB = 2**20
CALLERS = 16
BODY = b"\x0a" + b"\0" * (40 * MIB)
TOKEN = "a-secret-of-this-test"
SERVICE = "/osmosis.rollout.v1"
HEALTH = "/grpc.health.v1.Health/Check"
TRAINER = """
import asyncio
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.server import ServerSecurity
from osmosis_grpc.trainer import Trainer

async def main():
    security = ServerSecurity(["a-secret-of-this-test"])
    async with Trainer([], ToolCallingMock(), transport="callback", listen="127.0.0.1:0", security=security) as trainer:
        print(trainer.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def agent_server(folder):
    (folder / "token").write_text(TOKEN)
    module = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
    with server_process(*module, "--token-file", "token", "--no-validate", cwd=folder) as (process, address):
        yield process.pid, address


@contextmanager
def trainer(folder):
    command = [sys.executable, "-c", TRAINER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def peak(pid):
    """The most MiB of a process that were in memory at once."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("VmHWM")).split()[1]) // 1024


async def upload(address, method, metadata=None):
    """The name of the status that a stock client gets for a large request."""
    own = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    async with grpc.aio.insecure_channel(address, options=own) as channel:
        try:
            await channel.unary_unary(method)(BODY, timeout=60, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


@pytest.mark.parametrize(
    ("side", "method", "answers", "most"),
    [
        (agent_server, f"{SERVICE}.RolloutService/Init", {"UNAUTHENTICATED"}, 100),
        (agent_server, f"{SERVICE}.RolloutService/StreamEvents", {"UNAUTHENTICATED"}, 100),
        (agent_server, HEALTH, {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}, 450),
        (trainer, f"{SERVICE}.TrainerService/Chat", {"UNAUTHENTICATED"}, 100),
        (trainer, f"{SERVICE}.TrainerService/Complete", {"UNAUTHENTICATED"}, 100),
    ],
)
async def test_large_requests_without_a_credential_take_no_memory(tmp_path, side, method, answers, most):
    with side(tmp_path) as (pid, address):
        before = peak(pid)
        assert {*await asyncio.gather(*(upload(address, method) for _ in range(CALLERS)))} <= answers
        assert peak(pid) - before < most


async def test_a_caller_with_a_token_and_a_probe_are_served_beside_large_requests_of_strangers(tmp_path):
    with agent_server(tmp_path) as (_, address):
        methods = [HEALTH, f"{SERVICE}.RolloutService/Init"]
        uploads = [asyncio.create_task(upload(address, method)) for method in methods * (CALLERS // 2)]
        async with grpc.aio.insecure_channel(address) as channel, CallbackTrainer(ToolCallingMock()) as policy:
            health = health_pb2_grpc.HealthStub(channel)
            request = rollout_pb2.InitRequest(rollout_id="r")
            request.spec.messages.add(role="user", text="What is 1 + 2?")
            request.callback.target = policy.address
            request.callback.credential = policy.callback().credential
            init = services_pb2_grpc.RolloutServiceStub(channel).Init
            assert (await init(request, metadata=(("authorization", f"Bearer {TOKEN}"),))).created
            while not all(task.done() for task in uploads):
                assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            assert (await policy.outcome("r", 30)).status == "COMPLETED"
        assert "OK" not in {task.result() for task in uploads}


async def test_a_refused_request_is_not_kept_in_memory(tmp_path):
    with agent_server(tmp_path) as (pid, address):
        before = peak(pid)
        for _ in range(10):
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            assert await upload(address, f"{SERVICE}.RolloutService/Init", metadata) == "INVALID_ARGUMENT"
        assert peak(pid) - before < 250
