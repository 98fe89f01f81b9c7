"""The Osmosis SDK as it is on PyPI, in both directions: its clients and our server, our trainer and its servers."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_gateway.workflow_server_agent import WorkflowServerAgent, hosted_legacy_agent
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import Grader
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from tests.legacy.polling_client import PollingClient
from tests.legacy.test_controllers import serving
from tests.legacy.workflows import Sums, config
from tests.ports import quiet_port

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
ROLLOUTS = 20
VERSIONS = ["0.2.31", "0.3.0", "0.3.2", "0.3.8"]
QUESTION = [{"role": "user", "content": "What is 2 * 3?"}]
NEWEST_PYTHON = "3.1[2-9]*/bin/python"


def new_python():
    """Return the path of a Python that the SDK runs on, or skip the test."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [sys.executable] if sys.version_info >= (3, 12) else []
    found += sorted(map(str, pyenv.glob(NEWEST_PYTHON)))
    found += filter(None, [shutil.which("python3.12"), shutil.which("python3.13")])
    if not found:
        pytest.skip("the SDK needs Python 3.12 or newer")
    return found[0]


def installed(version):
    """Return the Python of an environment with this version of the SDK. Skip the test if it cannot be had."""
    python = ROOT / "build" / "sdk" / version / "bin" / "python"
    package = f"osmosis-ai[server]=={version}" if version >= "0.3" else f"osmosis-ai=={version}"
    works = [python, "-c", "import osmosis_ai, fastapi, uvicorn"]
    if subprocess.run(works, check=False).returncode if python.exists() else True:
        subprocess.run([new_python(), "-m", "venv", "--clear", python.parents[1]], check=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        if subprocess.run(command, check=False).returncode:
            pytest.skip(f"{package} cannot be installed")
    return str(python)


class Half(Grader):
    """Rewards every sample with a half, after a while."""

    async def grade(self, ctx):
        await asyncio.sleep(0.5)  # a slow grader
        for name in ctx.get_samples():
            ctx.set_sample_reward(name, 0.5)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_clients_of_the_sdk_get_every_reward(version):
    python = await asyncio.to_thread(installed, version)
    async with serving(WorkflowRunnable(Sums, config, Half)) as (_, address):
        command = (python, str(Path(__file__).with_name("sdk_trainer.py")), version, f"http://{address}")
        process = await asyncio.create_subprocess_exec(*command, str(ROLLOUTS), stdout=asyncio.subprocess.PIPE)
        output = (await process.communicate())[0].decode()
    assert process.returncode == 0
    rows = [json.loads(line) for line in output.split("\n") if line]
    assert len({row["rollout_id"] for row in rows}) == ROLLOUTS
    assert {(row["status"], row["reward"]) for row in rows} == {("success", 0.5)}
    assert {tuple(row["texts"]) for row in rows} == {("What is 2 * 3?", "The answer is 6.")}
    assert any(row["graded"] == "grading" for row in rows) is (version == "0.3.8")


@contextlib.asynccontextmanager
async def sdk_server(version, home):
    """Run a server of the SDK. Yields its URL."""
    python, port = await asyncio.to_thread(installed, version), quiet_port()
    command = (python, str(Path(__file__).with_name("sdk_server.py")), version, str(port))
    own = {"HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | own)
    try:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(listens, port):
                assert process.returncode is None
                await asyncio.sleep(0.1)  # until the process listens
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


def listens(port):
    """Return whether something listens at a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.asynccontextmanager
async def hosting(version, home):
    """Host a server of the SDK. Yields a trainer of ours."""
    async with sdk_server(version, home) as url:
        agent = await hosted_legacy_agent(url, name="asks")
        assert isinstance(agent, WorkflowServerAgent)
        async with agent, AgentServer([agent], port=0) as server, Trainer([server.address], EchoPolicy()) as trainer:
            yield trainer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.row("SDK S20")
async def test_our_trainer_gets_the_samples_and_rewards_of_the_sdks_servers(version, tmp_path):
    async with hosting(version, tmp_path) as trainer:
        outcomes = await asyncio.gather(
            *(
                trainer.rollout(
                    rollout_id=f"r {number}",
                    messages=[{"role": "user", "content": f"number {number}"}],
                    label=str(number),
                    metadata={"twice": number % 2 == 1},
                )
                for number in range(ROLLOUTS)
            )
        )
        broken = await trainer.rollout(rollout_id="broken", messages=QUESTION, label="6", metadata={"raise": True})
        ungraded = await trainer.rollout(rollout_id="ungraded", messages=QUESTION)
    for number, outcome in enumerate(outcomes):
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        twice = number % 2 == 1
        assert outcome.reward == float(not twice)  # the second reply repeats another question
        ((name, sample),) = outcome.samples.items()
        assert name == ("solver" if version.startswith("0.2.") else "main")
        assert sample.messages[0]["content"] == f"number {number}"
        assert len(sample.messages) == (4 if twice else 2)
        assert sample.segments
        assert outcome.extra_fields["samples"][name]["metrics"] == {"messages": len(sample.messages)}
    assert (broken.status, broken.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "the agent broke" in broken.failure.message
    assert (ungraded.status, ungraded.reward) == (OutcomeStatus.COMPLETED, None)


@pytest.mark.row("SDK S21")
async def test_the_scaffold_of_0_3_8_runs_after_its_migration(tmp_path):
    python, port = Path(await asyncio.to_thread(installed, "0.3.8")), quiet_port()
    for folder in ("rollouts", "configs/training", "configs/eval", "data"):
        (tmp_path / folder).mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    own = os.environ | {"HOME": str(tmp_path), "_OSMOSIS_ROLLOUT_PORT": str(port)}
    init = [str(python.with_name("osmosis")), "--plain", "rollout", "init", "mine"]
    subprocess.run(init, cwd=tmp_path, env=own, check=True, capture_output=True)
    folder = tmp_path / "rollouts" / "mine"
    migrate = subprocess.run(
        [sys.executable, "-m", "osmosis_grpc", "migrate", str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert migrate.returncode == 1
    assert "main.py:" in migrate.stdout  # a server without a token
    assert "pyproject.toml:" in migrate.stdout
    process = await asyncio.create_subprocess_exec(sys.executable, "main.py", cwd=folder, env=own)
    try:
        async with asyncio.timeout(60), PollingClient() as client:
            while not await asyncio.to_thread(listens, port):
                assert process.returncode is None
                await asyncio.sleep(0.1)  # until the process listens
            result = await client.run(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        await process.wait()
    assert (result.status, result.err_category) == ("failure", "agent_error")
    assert "MyAgentWorkflow" in result.err_message  # its author has not written it yet
