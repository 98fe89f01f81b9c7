"""What fails beside the model is a failure of the rollout: no reward is given for it, and no text tells the model."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.protocol.errors import GradingError, ToolUnavailable
from osmosis_grpc.tools import BaseTool, ToolRegistry
from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
from osmosis_grpc.tools.sandbox import LocalSandbox, SandboxError, SandboxLost
from osmosis_grpc.tools.sandbox.port import LISTED
from tests.compat.agentic.repositories import FINISH
from tests.compat.agentic.scripted import Script, calls
from tests.processes import ROOT
from tests.tools.kubernetes import api_server

FILES = {"sums.py": "X = 1\n"}


async def coded(*replies, test_command="true", files=FILES, **options):
    config = AgenticRolloutConfig(agent_type="coding", agent_options={"test_command": test_command})
    return await AgenticRollout(config, Script(*replies), **options).run("Mend it.", metadata={"files": files})


@pytest.mark.parametrize("command", ["no-such-program", "./sums.py", "python3 -m no_such_module_of_tests -q"])
async def test_tests_that_do_not_run_give_no_reward(command):
    made = await coded(FINISH, test_command=command)
    assert (made.stop_reason, made.final_reward) == ("error", None)
    assert "test_command" in made.error


@pytest.mark.parametrize(
    ("command", "reward"), [("true", 1.0), ("exit 3", 0.0), ("python3 -m json.tool sums.py", 0.0), ("kill $$", 0.0)]
)
async def test_tests_that_run_give_a_reward(command, reward):
    made = await coded(FINISH, test_command=command)
    assert (made.final_reward, made.error) == (reward, None)


@pytest.fixture
async def api():
    pytest.importorskip("kubernetes_asyncio")
    if not api_server.usable():
        pytest.skip("bubblewrap does not work on this machine")
    async with api_server.FakeApi() as made:
        yield made


@pytest.fixture
async def cluster(api, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = KubernetesConfig(
        server_id="s", image="python:3.12", kubeconfig=api.kubeconfig(tmp_path), attempts=2, request_timeout=1.0
    )
    async with KubernetesCluster(config) as made:
        yield made


async def test_a_pod_that_is_gone_fails_the_rollout(api, cluster):
    class Model(Script):
        async def __call__(self, messages, **params):
            for name in list(api.pods):
                await api.end(name, "Evicted")
            return await super().__call__(messages, **params)

    model = Model(calls(("bash_executor", {"command": "echo 42"})), "I could not find out.")
    config = AgenticRolloutConfig(agent_type="tool", tools_config={"bash_executor": {}})
    made = await AgenticRollout(config, model, sandbox=cluster.sandbox).run("What is it?")
    assert (made.stop_reason, made.is_completed) == ("error", False)
    assert len(model.asked) == 1, "the model was told"


async def test_a_pod_that_is_not_reached_is_no_timeout_of_the_program(api, cluster):
    async with cluster.sandbox("r") as box:
        api.faults = lambda call: api_server.status(503, "Down", "down") if call == "GET exec" else None
        with pytest.raises(ToolUnavailable):
            await box.run("true", seconds=0.1)
    api.faults = lambda call: None
    async with cluster.sandbox("r") as box:
        assert (await box.run("sleep 60", seconds=0.5)).timed_out


async def test_a_command_that_is_too_long_is_an_error_of_the_model():
    async with LocalSandbox() as box:
        with pytest.raises(SandboxError) as refused:
            await box.run("true " + "x" * 3_000_000)
        assert not isinstance(refused.value, SandboxLost)


async def test_a_tool_whose_reward_fails_fails_the_trajectory():
    class Broken(BaseTool):
        """Does nothing."""

        async def execute(self) -> int:
            return 1

        async def reward(self) -> float:
            raise RuntimeError("no reward")

    registry = ToolRegistry()
    registry.register(Broken, "broken")
    with pytest.raises(GradingError):
        async with registry.trajectory("t"):
            pass


READ = """
import os, sys
from pathlib import Path
from osmosis_grpc.compat.agentic.coding_agent import read_folder
from osmosis_grpc.protocol.errors import InvalidArgument

folder = Path(sys.argv[1])
os.setuid(65534)
try:
    print(sorted(read_folder(folder)))
except InvalidArgument:
    print("repository")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(
    ("path", "mode", "printed"),
    [("inner", 0o755, "['inner/file']"), ("inner", 0o700, "repository"), ("inner/file", 0o600, "repository")],
)
def test_a_repository_of_which_a_part_cannot_be_read_is_refused(path, mode, printed):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        inner = Path(folder, "inner")
        inner.mkdir(mode=0o755)
        (inner / "file").write_text("x")
        Path(folder, path).chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", READ, folder], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.stdout.strip() == printed, done.stderr


async def test_a_patch_says_what_it_leaves_out():
    deep = "/".join("d" * 40)
    made = await coded(calls(("bash_executor", {"command": f"mkdir -p {deep}; touch {deep}/f"})), FINISH)
    assert made.metadata["patch_left_out"] == "/".join("d" * 32) + "/"


async def test_a_whole_patch_leaves_nothing_out():
    made = await coded(calls(("bash_executor", {"command": "echo X = 2 >sums.py"})), FINISH)
    assert "patch_left_out" not in made.metadata
    assert "+X = 2" in made.metadata["patch"]


@pytest.mark.slow
async def test_a_file_beyond_the_list_is_not_removed_in_the_patch():
    many = calls(("bash_executor", {"command": f"mkdir a; cd a; seq {LISTED} | xargs touch"}))
    made = await coded(many, FINISH)
    assert made.metadata["patch_left_out"]
    assert "sums.py" not in made.metadata["patch"]
