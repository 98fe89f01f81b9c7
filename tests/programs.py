"""Runs a program of benchmarks/ or tests/faults/ in a process of its own and reads its figures."""

import json
import os
import subprocess
import sys

from tests.processes import ROOT


def run_module(module: str, *options: str, timeout: float = 170) -> subprocess.CompletedProcess:
    """Run `python -m module` with `--json` from the repository's root."""
    return subprocess.run(
        [sys.executable, "-m", module, *options, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )


def figures_of(module: str, *options: str, timeout: float = 170) -> dict:
    """Return the figures of a program that has to succeed."""
    ended = run_module(module, *options, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-3000:] + ended.stdout[-2000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])
