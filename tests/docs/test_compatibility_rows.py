"""docs/compatibility.md has a test for each behaviour of the SDK."""

import subprocess
import sys

from tests.processes import ROOT


def test_each_row_names_a_test_that_exists():
    command = [sys.executable, "scripts/sdk_rows.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
