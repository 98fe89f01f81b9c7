"""Real coding programs as agents, each as its preset starts it: a task with edits, a full context, a cancel, a kill."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.coding_programs.install import FOLDER, asked_for, marks, versions
from tests.coding_programs.scripted_model import STEPS, TASK, ScriptedModel
from tests.waiting import until

pytestmark = pytest.mark.programs
PROGRAMS = [pytest.param(name, marks=marks(name)) for name in versions()]
WITH_SUB_AGENTS = ("claude-code", "opencode", "qwen-code", "openhands")
COMPACTING = ("claude-code", "codex", "opencode", "pi", "openhands")
"""Gemini's program compacts between two prompts of a person only, and Qwen Code cuts the long results first."""
LONG_STEPS = tuple(f"head -c {12000 + number} /dev/zero | tr '\\0' x" for number in range(5))
REWARD = "sh -c 'test \"$(cat hello.txt)\" = fixed && echo 1 || echo 0'"
AT_ONCE = int(os.environ.get("OSMOSIS_TEST_AT_ONCE", "4"))
MESSAGES = [{"role": "user", "content": TASK}]


@asynccontextmanager
async def served(name, tmp_path, *options):
    """Yields a server process that hosts a program, and its address."""
    env = {**os.environ, "PATH": f"{FOLDER / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "osmosis_grpc.serve", "--program", name, "--reward", REWARD, "--json"]
    options = ("--grpc-port", "0", "--no-http", "--no-journal", *options)
    process = subprocess.Popen([*command, *options], env=env, stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(await asyncio.to_thread(process.stdout.readline))
        yield process, ready["grpc"]
    finally:
        process.terminate()
        await asyncio.to_thread(process.communicate)


def homes(tmp_path):
    """The HOME of each process of a program whose folder is below a temporary folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            values = dict(line.partition(b"=")[::2] for line in path.read_bytes().split(b"\0"))
        except OSError:
            continue
        if values.get(b"TMPDIR", b"").startswith(f"{tmp_path}/osmosis-".encode()):
            found.append(values[b"HOME"])
    return found


def check_tokens(outcome, model):
    """Each conversation is one segment, and exactly what was sampled is to be trained on."""
    segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
    assert {name: len(sample.segments) for name, sample in outcome.samples.items()} == dict.fromkeys(outcome.samples, 1)
    assert sum(np.count_nonzero(segment.mask()) for segment in segments) == model.sampled[outcome.rollout_id]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_task_with_edits_has_its_reward_and_its_tokens(name, tmp_path):
    model = ScriptedModel()
    async with served(name, tmp_path) as (_, address), Trainer(address, model) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=MESSAGES, max_turns=50, max_tokens_total=100_000)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    check_tokens(outcome, model)
    parents = [sample.parent.sample for sample in outcome.samples.values() if sample.parent is not None]
    assert parents == ["main"] * (name in WITH_SUB_AGENTS)


@pytest.mark.parametrize("name", [each for each in PROGRAMS if each.values[0] in COMPACTING])
async def test_a_program_compacts_its_history_when_the_context_is_full_and_finishes(name, tmp_path):
    probe = ScriptedModel()
    async with served(name, tmp_path) as (_, address), Trainer(address, probe) as trainer:
        await trainer.rollout(rollout_id="r1", messages=MESSAGES, max_turns=1, max_tokens_total=100_000)
    model = ScriptedModel(context=probe.prompts["r1"] + 8_000, steps=(*LONG_STEPS, *STEPS), sub_agents=False)
    options = "--program-context", str(model.context)
    async with served(name, tmp_path, *options) as (_, address), Trainer(address, model) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=MESSAGES, max_turns=50, max_tokens_total=100_000)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    assert sum(len(sample.segments) for sample in outcome.samples.values()) > 1
    assert max(map(model.refused.count, model.refused), default=0) <= 2


@pytest.mark.parametrize("name", PROGRAMS)
async def test_rollouts_at_once_stay_apart(name, tmp_path):
    model = ScriptedModel()
    async with served(name, tmp_path) as (_, address), Trainer(address, model) as trainer:
        outcomes = await asyncio.gather(
            *(
                trainer.rollout(rollout_id=f"r{number}", messages=MESSAGES, max_turns=50, max_tokens_total=100_000)
                for number in range(AT_ONCE)
            )
        )
    assert [outcome.reward for outcome in outcomes] == [1.0] * AT_ONCE, [outcome.failure for outcome in outcomes]
    for outcome in outcomes:
        check_tokens(outcome, model)
    await until(lambda: not homes(tmp_path))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("end", ["cancel", "deadline", "the server is killed"])
async def test_no_process_of_a_program_is_left(name, end, tmp_path):
    asked = set()

    async def silent(request):
        asked.add(request.rollout_id)
        await asyncio.Event().wait()

    async with served(name, tmp_path) as (server, address), Trainer(address, silent) as trainer:
        deadline = {"agent_timeout": 20.0} if end == "deadline" else {}
        names = [f"r{number}" for number in range(AT_ONCE)]
        running = asyncio.gather(*(trainer.rollout(rollout_id=name, messages=MESSAGES, **deadline) for name in names))
        if end != "deadline":
            await until(lambda: len(asked) == AT_ONCE, timeout=60.0 + AT_ONCE)
            assert len(set(homes(tmp_path))) == AT_ONCE
        if end == "cancel":
            await trainer.cancel(everything=True)
        elif end == "the server is killed":
            os.kill(server.pid, signal.SIGKILL)
        if end != "the server is killed":
            status = OutcomeStatus.CANCELLED if end == "cancel" else OutcomeStatus.DEADLINE_EXCEEDED
            assert {outcome.status for outcome in await running} == {status}
        await until(lambda: not homes(tmp_path), timeout=30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_the_programs_are_those_that_were_asked_for():
    programs = [version.command for name, version in versions().items() if name in asked_for()]
    assert [name for name in programs if not shutil.which(name, path=str(FOLDER / "bin"))] == []
