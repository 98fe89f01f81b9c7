"""A short form of examples/vllm_trl: TRL trains, and vLLM gets the weights of each step. Run by `make test-vllm`."""

import os
import re
import subprocess

import pytest

from tests.processes import ROOT
from tests.vllm.engine import HOME

pytestmark = pytest.mark.vllm
TRL = ROOT / ".venv-trainers" / "trl" / "bin" / "python"
STEPS = 3


@pytest.mark.timeout(600)
def test_each_step_is_sampled_with_its_own_weights_and_the_trainer_gets_the_same_logprobs(tmp_path):
    """The program itself exits if a token has the weights of another step, or a logprob differs."""
    if not TRL.is_file():
        pytest.fail("there is no TRL: run `make test-vllm`")
    program = ROOT / "examples" / "vllm_trl" / "train.py"
    options = ("--vllm", HOME / "bin" / "vllm", "--steps", str(STEPS), "--warm-up", "40")
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [TRL, program, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    differences = re.findall(r"largest difference of a logprob (\S+)", done.stdout)
    assert len(differences) == STEPS
    assert max(map(float, differences)) < 1e-3
    assert f"'rollouts': {STEPS * 64}, 'failed': 0, 'segments_left_out': 0" in done.stdout
