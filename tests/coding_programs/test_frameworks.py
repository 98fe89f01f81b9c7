"""Frameworks of agents as programs, as they are: tools, streams, structured replies and errors."""

import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.coding_programs.framework_model import FrameworkModel
from tests.coding_programs.install import FOLDER, marks, versions

pytestmark = pytest.mark.programs
SCRIPTS = Path(__file__).with_name("frameworks")
REWRITING = ("smolagents", "dspy")
"""Frameworks whose every prompt is a new one: they write what was said into it in words of their own."""
QUESTION = [{"role": "user", "content": "What is 6 times 7?"}]


def script(name):
    return SCRIPTS / f"{name.replace('-', '_')}_agent.py"


CASES = [
    pytest.param(name, case, marks=marks(name))
    for name in versions(frameworks=True)
    for case in re.findall(r"@case\n(?:async )?def (\w+)", script(name).read_text())
]
FIRST = list({case.values[0]: case for case in reversed(CASES)}.values())[::-1]


@asynccontextmanager
async def rollout_of(name, case, model):
    """Yields the outcome of a case of a framework."""
    command = [sys.executable, "-m", "osmosis_grpc.serve", "--json", "--grpc-port", "0", "--no-http", "--no-journal"]
    python = FOLDER / name / "bin" / "python"
    process = subprocess.Popen(
        [*command, "--command", f"{python} {script(name)}"], env=os.environ, stdout=subprocess.PIPE, text=True
    )
    try:
        address = json.loads(process.stdout.readline())["grpc"]
        async with Trainer(address, model) as trainer:
            yield await trainer.rollout(rollout_id="r1", messages=QUESTION, metadata={"case": case})
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(("name", "case"), CASES)
async def test_a_case_of_a_framework_gives_its_result_and_exact_tokens(name, case):
    model = FrameworkModel()
    async with rollout_of(name, case, model) as outcome:
        assert (outcome.status, outcome.failure) == (OutcomeStatus.COMPLETED, None)
    said = outcome.extra_fields["said"]
    assert said == {"value": 42} if "structured" in case else "42" in said
    if "tools" in case:
        assert "42" in str(model.chats[-1].messages[-1])
    segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
    assert len(segments) == (len(model.chats) if name in REWRITING else 1)
    ids = np.concatenate([segment.ids[segment.mask().astype(bool)] for segment in segments])
    assert ids.tolist() == np.concatenate([ids for ids, _ in model.replies]).tolist()
    logprobs = np.concatenate([segment.logprobs for segment in segments])
    assert logprobs.tolist() == np.concatenate([logprobs for _, logprobs in model.replies]).tolist()


@pytest.mark.parametrize(("name", "case"), FIRST)
async def test_a_framework_gets_the_error_of_a_full_context_and_does_not_repeat_it(name, case):
    model = FrameworkModel(full=True)
    async with rollout_of(name, case, model) as outcome:
        if outcome.finish_reason != "length":  # CrewAI asks for a summary, and goes on
            assert outcome.status is OutcomeStatus.FAILED
            assert outcome.failure.boundary == "trainer"
    asked = [chat.messages for chat in model.chats]
    assert max(map(asked.count, asked)) <= 2
