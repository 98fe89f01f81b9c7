"""ARL row 50: a rollout of software engineering returns a patch, a stop reason and a reward, also from a pod."""

import shutil
import subprocess
import sys

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from tests.compat.agentic.repositories import REPOSITORIES, TESTS
from tests.compat.agentic.scripted import Script


def written(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def is_green(folder):
    return subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=folder, capture_output=True).returncode == 0


async def swe_run(name, folder, **options):
    """Run the coding agent, check its trajectory, and apply its patch to the repository."""
    files, replies, _ = REPOSITORIES[name]
    repository = written(folder, files)
    assert not is_green(repository)
    config = AgenticRolloutConfig(
        agent_type="coding", agent_options={"repository": str(repository), "test_command": TESTS}
    )
    trajectory = await AgenticRollout(config, Script(*replies), **options).run("Make the tests pass.")
    assert (trajectory.stop_reason, trajectory.final_reward) == ("finish_tool", 1.0), trajectory.error
    patch = trajectory.metadata["patch"].encode()
    subprocess.run(["git", "apply", "-"], input=patch, cwd=repository, check=True, capture_output=True)
    assert is_green(repository)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patch")
@pytest.mark.row("ARL 50")
async def test_the_patch_of_a_run_in_the_local_sandbox_mends_the_repository(tmp_path):
    await swe_run(next(iter(REPOSITORIES)), tmp_path)


@pytest.mark.adapters
@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patch")
@pytest.mark.parametrize("name", REPOSITORIES)
@pytest.mark.row("ARL 50")
async def test_the_coding_agent_works_in_a_pod(name, tmp_path, monkeypatch):
    """Against a fake API server, which runs the programs in bubblewrap."""
    pytest.importorskip("kubernetes_asyncio")
    from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
    from tests.tools.kubernetes.api_server import FakeApi, usable

    if not usable():
        pytest.skip("bubblewrap does not work on this machine")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with FakeApi() as api:
        config = KubernetesConfig(server_id="swe", image="python:3.12", kubeconfig=api.kubeconfig(tmp_path))
        async with KubernetesCluster(config) as cluster:
            (tmp_path / "repository").mkdir()
            await swe_run(name, tmp_path / "repository", sandbox=cluster.sandbox)
            assert not api.pods
    assert "POST pods" in api.calls
