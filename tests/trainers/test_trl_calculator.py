"""A short part of the calculator agent under TRL, with its check of the logprobs. Run by `make test-trainers`."""

import os
import re

import pytest

from tests.processes import ROOT, run

pytestmark = pytest.mark.trainers
WORKERS = os.environ.get("OSMOSIS_ROLLOUT_SERVER_WORKERS", "1")


@pytest.mark.timeout(300)
def test_recomputed_logprobs_equal_the_recorded_ones(tmp_path):
    pytest.importorskip("trl")
    program = ROOT / "examples" / "trl_calculator" / "train.py"
    options = ("--steps", "2", "--warm-up", "40", "--workers", WORKERS)
    done = run(str(program), *options, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"greatest difference of logprobs (\S+),", done.stdout)[1]) <= 1e-4
    assert "'rollouts': 128, 'failed': 0, 'segments_left_out': 0" in done.stdout
    assert (tmp_path / "trl.png").read_bytes().startswith(b"\x89PNG")
