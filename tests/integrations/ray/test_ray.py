"""Agent servers on a local Ray cluster of three nodes. `make test-ray` runs this file."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import aclosing, contextmanager

import pytest

from osmosis_grpc.integrations.ray import ray_targets
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.processes import ROOT
from tests.waiting import until, wait_until

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the garbage collector
]

AGENTS = "tests.integrations.ray.agents:agents"
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
TIMEOUT = 90.0


@pytest.fixture(scope="module")
def cluster():
    """Three nodes. Two of them have addresses of their own, so that they are like machines with disks of their own."""
    head = {**SMALL, "include_dashboard": False, "_system_config": QUICK}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    made.nodes_to_kill = [made.add_node(**SMALL, node_ip_address=f"127.0.0.{n}") for n in (2, 3)]
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def serving_on_ray(cluster, folder, *arguments):
    """Runs `serve --ray`. Gives the process and its first record."""
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)}
    environment["OSMOSIS_ROLLOUT_SERVER_STATE_DIR"] = str(folder / "state")
    command = [sys.executable, "-m", "osmosis_grpc.serve", "--ray", "-m", AGENTS, "--no-validate", "--insecure"]
    command += ["--no-http", "--json", "--ray-resources", "CPU=0.3", "--log-level", "warning", *arguments]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
        ) as process,
    ):
        try:
            line = next((line for line in process.stdout if line.startswith('{"event": "ready"')), "")
            assert line, (folder / "log").read_text()
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(TIMEOUT)


def reply(request):
    return answer(request, "fine", tokens=2)


def requests(count, prefix, think):
    question = [{"role": "user", "content": "hello"}]
    return [
        RolloutRequest(rollout_id=f"{prefix}-{n}", messages=question, agent_loop="walk", metadata={"think": think})
        for n in range(count)
    ]


def connected(cluster):
    if not ray.is_initialized():
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)


async def test_a_server_that_ends_is_started_again_on_its_node_and_goes_on(cluster, tmp_path):
    connected(cluster)
    with serving_on_ray(cluster, tmp_path, "--grpc-port", "24100", "--ray-name", "again") as (process, ready):
        assert len(ready["servers"]) == 3
        async with Trainer(ray_targets("again"), reply) as trainer, asyncio.timeout(TIMEOUT):
            await until(lambda: sum(server.attached for server in trainer.servers) == 3, timeout=TIMEOUT)
            before = {server.name: server.journal_id for server in trainer.servers}
            running = [asyncio.create_task(trainer.rollout(r)) for r in requests(30, "again", 2.0)]
            await until(lambda: all(server.open for server in trainer.servers))
            kill_server_at(ready["servers"][0])
            outcomes = await asyncio.gather(*running)
            assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}
            assert {outcome.attempt for outcome in outcomes} == {1}  # it went on from its journal
            assert {server.name: server.journal_id for server in trainer.servers} == before
        process.send_signal(signal.SIGTERM)
        assert await SYSTEM.run(process.wait, TIMEOUT) == 0
    assert not ray.util.list_named_actors(all_namespaces=True)


async def test_a_node_that_is_killed_during_500_rollouts_loses_none(cluster, tmp_path):
    connected(cluster)
    targets, outcomes = tmp_path / "servers", []
    options = ("--grpc-port", "24200", "--ray-name", "node", "--targets-file", str(targets))
    with serving_on_ray(cluster, tmp_path, *options) as (_, ready):
        hosts = [address.rpartition(":")[0] for address in ready["servers"]]
        assert len(set(hosts)) == 3, hosts
        async with (
            Trainer(ray_targets("node"), reply) as trainer,
            asyncio.timeout(TIMEOUT),
            aclosing(trainer.run(requests(500, "node", 0.3), max_in_flight=60)) as run,
        ):
            await until(lambda: sum(server.attached for server in trainer.servers) == 3, timeout=TIMEOUT)
            async for outcome in run:
                outcomes.append(outcome)
                if len(outcomes) == 150:
                    cluster.remove_node(cluster.nodes_to_kill.pop(0), allow_graceful=False)
                    killed = "127.0.0.2"
            await until(lambda: sum(server.attached for server in trainer.servers) == 3, timeout=TIMEOUT)
            now = [server.name for server in trainer.servers]
        assert not any(address.startswith(f"{killed}:") for address in now), now
        wait_until(lambda: set(now) == {line for line in targets.read_text().splitlines() if line[0] != "#"})
    assert Counter(outcome.status for outcome in outcomes) == {OutcomeStatus.COMPLETED: 500}
    assert len({outcome.rollout_id for outcome in outcomes}) == 500
    attempts = Counter(outcome.attempt for outcome in outcomes)
    assert set(attempts) == {1, 2}, attempts  # the work of the killed node went on elsewhere


async def test_the_example_goes_on_when_a_server_is_killed(cluster, tmp_path):
    shutil.copytree(ROOT / "examples" / "ray", tmp_path / "ray")
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "train.py"]
    done = await SYSTEM.run(
        subprocess.run, command, cwd=tmp_path / "ray", env=environment, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    assert "killing a server" in done.stdout
    assert "status: {'COMPLETED': 90}" in done.stdout, done.stdout


async def test_a_name_that_is_in_use_is_refused(cluster, tmp_path):
    (tmp_path / "second").mkdir()
    with (
        serving_on_ray(cluster, tmp_path, "--grpc-port", "24300", "--ray-servers", "1"),
        pytest.raises(AssertionError, match="--ray-name osmosis is in use in this cluster"),
        serving_on_ray(cluster, tmp_path / "second", "--grpc-port", "24310", "--ray-servers", "1"),
    ):
        pass


async def test_a_wrong_agent_ends_the_command_with_its_reason(cluster, tmp_path):
    with (
        pytest.raises(AssertionError, match=r"a server does not start: .*exit code"),
        serving_on_ray(cluster, tmp_path, "-m", "no_such_module:agent", "--ray-servers", "1"),
    ):
        pass


def kill_server_at(address):
    """Kills the process that listens at an address."""
    port = address.rpartition(":")[2]
    for process in os.listdir("/proc"):
        if process.isdecimal():
            try:
                with open(f"/proc/{process}/cmdline") as file:
                    arguments = file.read().split("\0")
            except OSError:
                continue
            if "osmosis_grpc.serve.child" in arguments and port in arguments:
                os.kill(int(process), signal.SIGKILL)
                return
    raise AssertionError(f"no server at {address}")
