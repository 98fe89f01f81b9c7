"""An agent's children keep neither the server's ports nor its journal: it is killed, and starts there again."""

import asyncio
import json
import os
import signal
import sys

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.ports import quiet_port
from tests.processes import serving
from tests.waiting import until

AGENT = ("-m", "tests.serve.forking_agent:agent_loop")


async def appears(path):
    await until(lambda: path.exists() and path.read_text())
    return json.loads(path.read_text())


def port_of(address):
    return int(address.rpartition(":")[2])


@pytest.mark.slow
async def test_a_server_that_was_killed_starts_again_while_the_children_of_its_agent_live(tmp_path):
    options = ("--state-dir", str(tmp_path / "state"), "--grpc-port", str(quiet_port()), "-p", str(quiet_port()))
    children = []
    try:
        with serving(*AGENT, *options) as (process, ready):
            ports = {port_of(ready["grpc"]), port_of(ready["http"])}
            async with Trainer([ready["grpc"]], ToolCallingMock()) as trainer:
                await trainer.rollout(rollout_id="r", messages=[], metadata={"folder": str(tmp_path)})
                reported = await appears(tmp_path / "parent.json")
                children = reported["children"]
                child = await appears(tmp_path / "child.json")
                warned = (line for line in process.stderr if "was forked at" in line)
                warning = await asyncio.to_thread(next, warned)
                process.send_signal(signal.SIGKILL)
        assert ports == set(reported["parent"]["listening"]), "the test looks at what it means to look at"
        assert set(reported["parent"]["ports"]) & ports
        assert not set(child["ports"]) & ports, "neither what listens nor what was accepted there"
        assert "forking_agent.py" in warning
        for pid in children:
            os.kill(pid, 0)
        with serving(*AGENT, *options) as (_, ready_again):
            assert {port_of(ready_again[name]) for name in ("grpc", "http")} == ports
            async with RolloutClient(ready_again["grpc"]) as client:
                assert (await client.get("r")).state.name == "COMPLETED", "it is the same journal"
            for pid in children:
                os.kill(pid, 0)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_sockets_and_files_are_closed_on_exec(tmp_path):
    """Read from the descriptors of a server that runs."""
    with serving(*AGENT, "--state-dir", str(tmp_path / "state"), "-p", "0") as (process, ready):
        async with RolloutClient(ready["grpc"]) as client:
            await client.info()
            folder = f"/proc/{process.pid}"
            kept = []
            for fd in os.listdir(f"{folder}/fd"):
                name = os.readlink(f"{folder}/fd/{fd}")
                with open(f"{folder}/fdinfo/{fd}") as file:
                    flags = int(dict(line.split(":", 1) for line in file)["flags"], 8)
                if int(fd) > 2 and not flags & os.O_CLOEXEC:
                    kept.append(name)
        assert kept == []
        assert sys.platform == "linux"
