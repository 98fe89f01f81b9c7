"""Real coding programs in containers: tasks, their tokens, what they can reach, and what is left of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.tools.tasks import load_tasks
from osmosis_grpc.trainer import Trainer
from tests.coding_programs.install import FOLDER
from tests.coding_programs.scripted_model import TASK, ScriptedModel
from tests.tools.tasks.written_tasks import write
from tests.waiting import until

pytestmark = pytest.mark.docker
MESSAGES = [{"role": "user", "content": TASK}]
GRADE = """
import os, pathlib
found = pathlib.Path("hello.txt")
assert not os.path.exists("/tmp/trace"), "this is another box"
print(float(found.exists() and found.read_text() == "fixed"))
"""
INTERPRETER = str(Path(sys.executable).resolve().parents[1])
"""The Python of the environments of the programs."""
PROGRAMS = {"claude-code": {"folder": "/task"}, "mini-swe-agent": {"folder": "/task", "writable": True, "user": 0}}
"""The fields of a box: one as small as possible, and one as images of tasks need it."""


@asynccontextmanager
async def served(daemon, tmp_path, name, *options, tasks=False, **fields):
    """Yields a server that runs a program in boxes, or in those of tasks, and its address."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{name} is not installed")
    own = {} if tasks else {"image": "osmosis-test-base", **PROGRAMS[name]}
    box = {"url": daemon, "processes": 512, **own, **fields}
    mounts = {str(FOLDER): str(FOLDER), INTERPRETER: INTERPRETER}
    path = f"{FOLDER}/bin:/usr/local/bin:/usr/bin:/bin"
    lines = [f"{key} = {json.dumps(value)}" for key, value in box.items()]
    table = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in mounts.items()]
    reward = [] if tasks else ['reward = ["python3", "grade.py"]']
    text = [f'extends = "{name}"', *reward, "[box]", *lines, "[box.mounts]", *table]
    (tmp_path / "own.toml").write_text("\n".join([*text, "[box.environment]", f'PATH = "{path}"']))
    (tmp_path / "grade.py").write_text(GRADE)
    command = [sys.executable, "-m", "osmosis_grpc.serve", "--program", "own.toml", "--json", "--no-journal"]
    process = subprocess.Popen(
        [*command, "--grpc-port", "0", "--no-http", *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        ready = json.loads(await asyncio.to_thread(process.stdout.readline))
        yield process, ready["grpc"]
    finally:
        process.terminate()
        await asyncio.to_thread(process.communicate)


def running(daemon):
    """The names of all containers."""
    listed = subprocess.run(["docker", "-H", daemon, "ps", "-aq"], check=True, capture_output=True, text=True)
    return listed.stdout.split()


NAMES = ["claude-code", pytest.param("mini-swe-agent", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_program_in_a_box_solves_tasks_and_its_tokens_are_exact(daemon, tmp_path, name):
    model = ScriptedModel(sub_agents=False)
    async with served(daemon, tmp_path, name) as (_, address), Trainer(address, model) as trainer:
        outcomes = await asyncio.gather(
            *(
                trainer.rollout(rollout_id=rollout, messages=MESSAGES, max_turns=50, max_tokens_total=100_000)
                for rollout in ("r1", "r2")
            )
        )
        await until(lambda: not running(daemon), timeout=10)
    for outcome in outcomes:
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
        segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
        assert sum(np.count_nonzero(segment.mask()) for segment in segments) == model.sampled[outcome.rollout_id]


@pytest.mark.parametrize("program", NAMES)
async def test_a_program_solves_tasks_in_their_own_boxes(daemon, tmp_path, program):
    steps = {
        "mend-python": ("cat /app/calc.py", "sed -i 's/a - b/a + b/' /app/calc.py"),
        "mend-perl": ("ls /tests", "sed -i 's/= 1/= 0/' /app/sum.pl"),
        "hidden-tests": ("echo nothing",),
    }
    models = {name: ScriptedModel(sub_agents=False, steps=commands) for name, commands in steps.items()}

    async def policy(request):
        return await models[request.rollout_id](request)

    folder = write(tmp_path / "tasks")
    # These programs need more memory than the tasks allow.
    for name in steps:
        file = folder / name / "task.toml"
        file.write_text(file.read_text().replace("memory_mb = 256", "memory_mb = 2048"))
    tasks = load_tasks(folder)
    more = {"max_turns": 50, "max_tokens_total": 200_000}
    async with (
        served(daemon, tmp_path, program, "--tasks", str(folder), tasks=True) as (_, address),
        Trainer(address, policy) as trainer,
    ):
        outcomes = {
            name: await trainer.rollout(
                rollout_id=name, messages=tasks[name].messages, metadata=tasks[name].metadata, **more
            )
            for name in steps
        }
        await until(lambda: not running(daemon), timeout=10)
    assert {name: each.reward for name, each in outcomes.items()} == {
        "mend-python": 1.0,
        "mend-perl": 1.0,
        "hidden-tests": 0.0,
    }, [each.failure for each in outcomes.values()]
    for name, outcome in outcomes.items():
        assert outcome.samples["main"].trainable
        segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
        assert sum(np.count_nonzero(segment.mask()) for segment in segments) == models[name].sampled[name]


REACHES = (
    "for a in 192.0.2.1/80 127.0.0.1/22 172.17.0.1/80; do (exec 3<>/dev/tcp/$a) 2>/dev/null && echo reached $a; done",
    "ls /sys/class/net; touch /tmp/trace",
    "env | grep -c SECRET_OF_THE_SERVER; ls /var/run/docker.sock /run/docker.sock 2>/dev/null",
    "printf fixed > hello.txt",
)


async def test_a_program_in_a_box_reaches_the_policy_and_nothing_else(daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    model, seen = ScriptedModel(sub_agents=False, steps=REACHES), []

    async def policy(request):
        seen.extend(message.get("content") for message in request.messages if message["role"] == "tool")
        return await model(request)

    async with served(daemon, tmp_path, "claude-code") as (_, address), Trainer(address, policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=MESSAGES, max_turns=50, max_tokens_total=100_000)
    assert outcome.reward == 1.0, outcome.failure
    told = json.dumps(seen)
    assert "reached" not in told
    assert "lo" in told
    assert "eth0" not in told
    assert "docker.sock" not in told


@pytest.mark.parametrize(
    "end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("cancel", "deadline")), "the server is killed"]
)
async def test_nothing_of_a_box_is_left(daemon, tmp_path, end):
    asked = set()

    async def silent(request):
        asked.add(request.rollout_id)
        await asyncio.Event().wait()

    async with served(daemon, tmp_path, "mini-swe-agent") as (server, address), Trainer(address, silent) as trainer:
        deadline = {"agent_timeout": 15.0} if end == "deadline" else {}
        rollouts = asyncio.gather(
            *(trainer.rollout(rollout_id=each, messages=MESSAGES, **deadline) for each in ("r1", "r2"))
        )
        if end != "deadline":
            await until(lambda: len(asked) == 2, timeout=60)
            assert len(running(daemon)) == 2
        if end == "cancel":
            await trainer.cancel(everything=True)
        elif end == "the server is killed":
            os.kill(server.pid, signal.SIGKILL)
        if end != "the server is killed":
            status = OutcomeStatus.CANCELLED if end == "cancel" else OutcomeStatus.DEADLINE_EXCEEDED
            assert {outcome.status for outcome in await rollouts} == {status}
        await until(lambda: not running(daemon), timeout=10)
        rollouts.cancel()
        await asyncio.gather(rollouts, return_exceptions=True)
