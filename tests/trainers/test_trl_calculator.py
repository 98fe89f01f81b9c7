"""A short part of the calculator agent under TRL, with its check of the logprobs. Run by `make test-trainers`."""

import re

import pytest

from tests.processes import ROOT, run

pytestmark = pytest.mark.trainers


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("steps", "workers"), [(2, 1), (1, 2)])
def test_recomputed_logprobs_equal_the_recorded_ones(tmp_path, steps, workers):
    pytest.importorskip("trl")
    program = ROOT / "examples" / "trl_calculator" / "train.py"
    options = ("--steps", str(steps), "--warm-up", "40", "--workers", str(workers))
    done = run(str(program), *options, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"greatest difference of logprobs (\S+),", done.stdout)[1]) <= 1e-4
    assert f"'rollouts': {64 * steps}, 'failed': 0, 'segments_left_out': 0" in done.stdout
    assert (tmp_path / "trl.png").read_bytes().startswith(b"\x89PNG")
