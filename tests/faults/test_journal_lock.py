"""Two servers on one journal, or on one port: the second one ends and logs the reason."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.processes import run, server_process

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


def second(*arguments: str):
    return run("-m", "osmosis_grpc.serve", *CALCULATOR, "--no-http", *arguments)


@pytest.mark.long
def test_a_second_server_on_one_journal_names_the_first(tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    with server_process(*CALCULATOR, *state) as (process, _):
        result = second("--grpc-port", "0", *state)
        assert result.returncode == 2
        assert f"in use by process {process.pid}" in result.stderr
        assert "--state-dir chooses another" in result.stderr
        assert "Traceback" not in result.stderr
        assert process.poll() is None


@pytest.mark.long
def test_a_server_whose_lock_is_removed_ends_before_it_writes_beside_another(tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    with server_process(*CALCULATOR, *state) as (process, _):
        (tmp_path / "state" / "lock").unlink()
        with server_process(*CALCULATOR, *state) as (second, _):
            assert process.wait(30) == 1
            assert second.poll() is None


@pytest.mark.slow
async def test_a_server_whose_journal_is_removed_ends_and_says_so(tmp_path):
    with server_process(*CALCULATOR, "--state-dir", str(tmp_path / "state")) as (process, address):
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
            for file in (tmp_path / "state").glob("journal.db*"):
                file.unlink()
            assert await asyncio.to_thread(process.wait, 30) == 1
        assert "was removed" in process.stderr.read()
