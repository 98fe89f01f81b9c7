"""Tasks in Harbor's format in real containers: their rewards, cheats, and what is refused."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.records.evaluate import Dataset
from osmosis_grpc.tools.sandbox import SandboxError
from osmosis_grpc.tools.tasks import TaskBoxes, load_tasks
from tests.tools.tasks.written_tasks import TASKS, write


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "tasks")


async def solved(boxes, name):
    """Run the solution of a task as an agent, and return the verdict of its tests."""
    task = boxes.tasks[name]
    async with boxes.open(task, "rollout-1") as box:
        assert (await box.run("ls /tests /solution 2>/dev/null")).stdout == b""
        await box.upload(task.folder / "solution", "/solution")
        await box.run(["bash", "/solution/solve.sh"], seconds=task.agent_seconds)
        return await boxes.verify(task, box)


ALIKE = ("mend-shell", "mend-perl", "half-of-it", "hidden-tests", "tests-never-end")


@pytest.mark.docker
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in TASKS]
)
async def test_a_task_has_its_reward_after_its_solution_or_its_cheat(folder, machine, name):
    async with machine() as made:
        verdict = await asyncio.wait_for(solved(TaskBoxes(folder, made), name), 120)
    assert verdict.reward == TASKS[name].reward, (verdict.problem, verdict.output)
    assert bool(verdict.problem) == (verdict.reward is None)
    assert verdict.changed_programs == ()


@pytest.mark.docker
async def test_an_unsolved_task_has_no_reward_and_changed_programs_are_named(folder, machine):
    async with machine() as made:
        boxes = TaskBoxes(folder, made)
        task = boxes.tasks["mend-python"]
        async with boxes.open(task) as box:
            await box.run("printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/python3.11")
            verdict = await boxes.verify(task, box)
        assert "/usr/bin/python3.11" in verdict.changed_programs
        async with boxes.open(task) as box:
            assert (await boxes.verify(task, box)).reward == 0.0


def test_a_folder_of_tasks_is_a_dataset(folder):
    dataset = Dataset(folder)
    rows = list(dataset.rows())
    assert [row.metadata["task"] for row in rows] == sorted(TASKS)
    assert rows[0].messages == [{"role": "user", "content": TASKS[sorted(TASKS)[0]].instruction}]
    one = list(Dataset(folder / "mend-perl").rows())
    assert [row.metadata["task"] for row in one] == ["mend-perl"]
    task = load_tasks(folder)["mend-perl"]
    assert one[0].messages == task.messages
    assert task.metadata.items() <= one[0].metadata.items()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("[[steps]]\nname = 'a'\n", "steps"),
        ("[environment]\ngpus = 1\n", "environment.gpus"),
        ("[environment]\nos = 'windows'\n", "environment.os"),
        ("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['10.0.0.0/8']\n", "environment.allowed_hosts"),
        ("[verifier]\n[[verifier.collect]]\ncommand = 'x'\n", "verifier.collect"),
        ("[[environment.mcp_servers]]\nname = 'a'\nurl = 'http://a'\n", "environment.mcp_servers"),
        ("[agent]\ntimeout_sec = 'long'\n", "timeout_sec"),
        ("artifacts = [{source = '/a', service = 'db'}]\n", "artifacts.service"),
        ("[environment]\nmemory = 'much'\n", "environment.memory"),
        ("x = \n", "task.toml"),
    ],
)
def test_a_key_that_is_not_supported_is_refused_by_its_name(folder, more, named):
    (folder / "mend-perl" / "task.toml").write_text(more)
    with pytest.raises(ValueError, match=named):
        load_tasks(folder)


@pytest.mark.parametrize("key", ["memry_mb", "storage_mb"])
def test_a_key_without_effect_is_logged(folder, caplog, key):
    (folder / "mend-perl" / "task.toml").write_text(f"[environment]\n{key} = 3\n")
    load_tasks(folder)
    assert f"environment.{key}" in caplog.text


def test_a_variable_that_the_server_lacks_is_refused_at_its_start(folder):
    (folder / "mend-perl" / "task.toml").write_text("[verifier.env]\nKEY = '${NOT_THERE_AT_ALL}'\n")
    with pytest.raises(ValueError, match="NOT_THERE_AT_ALL"):
        TaskBoxes(folder, None)


async def test_files_that_change_under_a_server_are_an_error(folder):
    boxes = TaskBoxes(folder, None)
    (folder / "mend-perl" / "tests" / "test.sh").write_text("#!/bin/sh\n")
    with pytest.raises(SandboxError):
        async with boxes.open(boxes.tasks["mend-perl"]):
            pass


@pytest.mark.parametrize("part", ["environment", "tests"])
def test_several_containers_are_refused(folder, part):
    (folder / "only-artifacts" / part / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(ValueError, match=f"{part}/docker-compose"):
        load_tasks(folder)


@pytest.mark.parametrize("missing", ["tests/test.sh", "environment/Dockerfile", "instruction.md"])
def test_a_missing_file_is_named(folder, missing):
    (folder / "mend-perl" / missing).unlink()
    with pytest.raises(ValueError, match=missing):
        load_tasks(folder)


def test_a_request_names_its_task_and_the_same_files(folder):
    boxes = TaskBoxes(folder, None)
    task = boxes.tasks["mend-perl"]
    assert boxes.task_of({"task": "mend-perl", "task_digest": task.digest()}) is task
    for metadata, field in (
        ({}, "task"),
        ({"task": "none"}, "task"),
        ({"task": "mend-perl", "task_digest": "0"}, "task_digest"),
    ):
        with pytest.raises(InvalidArgument) as raised:
            boxes.task_of(metadata)
        assert str(raised.value).startswith(f"spec.metadata.{field}")
