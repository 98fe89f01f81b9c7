"""A correction of equal length, made and tested within a second, is tested as it is, and not an older compiled file."""

import contextlib

import pytest

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig
from osmosis_grpc.tools import file_editor_tool
from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig
from osmosis_grpc.tools.sandbox import LocalSandbox
from osmosis_grpc.tools.sandbox.methods import METHODS
from tests.compat.agentic.repositories import FINISH, RUN, TESTS, edit
from tests.compat.agentic.scripted import Script
from tests.tools.kubernetes import api_server
from tests.tools.sandbox.conftest import usable

SANDBOXES = [*(method.name for method in METHODS), "kubernetes"]
FILES = {
    "sums.py": "def add(a, b):\n    return a - b\n",
    "test_sums.py": (
        "import unittest\nfrom sums import add\n\n\nclass Sums(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
}


@pytest.fixture(params=SANDBOXES)
async def make_box(request, tmp_path, monkeypatch):
    """A function that makes a sandbox of each kind."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param != "kubernetes":
            yield lambda rollout="": LocalSandbox(method=usable(request.param))
            return
        pytest.importorskip("kubernetes_asyncio")
        if not api_server.usable():
            pytest.skip("bubblewrap does not work on this machine")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        api = await stack.enter_async_context(api_server.FakeApi())
        config = KubernetesConfig(server_id="s", image="python:3.12", kubeconfig=api.kubeconfig(tmp_path))
        cluster = await stack.enter_async_context(KubernetesCluster(config))
        yield cluster.sandbox


@pytest.fixture
async def box(make_box):
    async with make_box() as made:
        yield made


@pytest.mark.slow
async def test_a_correction_of_equal_length_is_rewarded_each_time(make_box):
    config = AgenticRolloutConfig(agent_type="coding", agent_options={"test_command": TESTS}, concurrent_requests=2)
    policy = Script(RUN, edit("sums.py", "a - b", "a + b"), FINISH)
    rollouts = AgenticRollout(config, policy, sandbox=make_box)
    made = await rollouts.run_batch(["Mend add()."] * 20, metadata={"files": FILES})
    assert [each.final_reward for each in made] == [1.0] * 20, [each.metadata.get("tests") for each in made]


async def test_programs_of_a_sandbox_write_no_compiled_files(box):
    await box.write_file("sums.py", b"X = 1\n")
    ended = await box.run(["python3", "-c", "import sums"])
    assert (ended.exit_code, ended.stderr) == (0, b"")
    assert [file.path for file in await box.list_files(depth=3)] == ["sums.py"]


@pytest.mark.parametrize("theirs", [None, "-q", "-p no:cacheprovider"])
async def test_pytest_has_a_new_cache_in_each_run_and_the_options_of_the_caller(box, theirs):
    given = {} if theirs is None else {"PYTEST_ADDOPTS": theirs}
    show = 'printf "%s\\n" "$PYTEST_ADDOPTS"; eval echo "$PYTEST_ADDOPTS"'
    (text, first), (_, second) = [
        (await box.run(show, environment=given)).stdout.decode().splitlines() for _ in range(2)
    ]
    assert text.strip().startswith(theirs or "-o cache_dir=")
    assert ("cache_dir=/" in first) == (first != second) == (theirs != "-p no:cacheprovider")


async def test_a_variable_of_the_caller_wins(box):
    ended = await box.run("echo $PYTHONDONTWRITEBYTECODE.", environment={"PYTHONDONTWRITEBYTECODE": ""})
    assert ended.stdout == b".\n"


async def test_an_edited_file_has_a_time_in_a_later_second(box):
    """So caches that a program has written all the same do not fit it, also if it ignores the variables."""
    editor, seconds = file_editor_tool(box), []
    text = "X = 0\n"
    await editor.run({"command": "create", "path": "sums.py", "file_text": text})
    for number in range(1, 4):
        change = {"command": "str_replace", "path": "sums.py", "old_str": str(number - 1), "new_str": str(number)}
        await editor.run(change)
        ended = await box.run('python3 -E -c "import sums; print(sums.X)"; stat -c %Y sums.py')
        shown, second = map(int, ended.stdout.split())
        assert shown == number
        seconds.append(second)
    assert seconds == sorted(set(seconds))


async def test_a_time_far_ahead_is_not_carried_on(box):
    await box.write_file("f", b"1")
    await box.run("touch -d @4000000000 f")
    await box.write_file("f", b"2")
    assert int((await box.run("stat -c %Y f")).stdout) < 4_000_000_000
