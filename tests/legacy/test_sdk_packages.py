"""The SDK's own clients, as they are on PyPI, against our server: every reward arrives."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.rollout import Grader
from tests.legacy.test_controllers import serving
from tests.legacy.workflows import Sums, config

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
ROLLOUTS = 20
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
    package = f"osmosis-ai=={version}"
    if subprocess.run([python, "-c", "import osmosis_ai"], check=False).returncode if python.exists() else True:
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


@pytest.mark.parametrize("version", ["0.3.0", "0.3.2", "0.3.8"])
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
    assert any(row["graded"] == "grading" for row in rows) is (version == "0.3.8")
