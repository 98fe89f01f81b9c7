"""The same seeds give the same histories in other processes, with other hashes of strings, and in other Pythons."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = ("--seed", "1", "--rollouts", "100", "--digest", "--keep-going")
OTHERS = ("python3.11", "python3.12", "python3.13", "python3.14")
NAMED = "SIMULATION_PYTHONS"
"""The environment variable with further interpreters, separated by colons."""


def digests(python: str, hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "tests.simulation", *SEEDS]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    found = [line for line in ran.stdout.splitlines() if len(line.split()) == 2 and len(line.split()[1]) == 32]
    assert found, ran.stdout + ran.stderr
    return found


def others() -> list[str]:
    """Returns the other interpreters that have the packages of this project."""
    named = [path for path in os.environ.get(NAMED, "").split(":") if path]
    found = [*named, *filter(None, map(shutil.which, OTHERS))]
    needed = "import grpc_health, grpc_reflection, numpy, osmosis_grpc.trainer, sys; print(sys.version_info[:2])"
    own = f"{sys.version_info[:2]}"
    kept = []
    for python in found:
        ran = subprocess.run([python, "-c", needed], cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode == 0 and ran.stdout.strip() != own:
            kept.append(python)
    return kept


@pytest.mark.slow
def test_seeds_give_the_same_histories_in_every_process_and_every_python():
    first = digests(sys.executable, "1")
    assert digests(sys.executable, "2") == first
    for python in others():
        assert digests(python, "3") == first, python


@pytest.mark.slow
def test_there_is_another_python_to_compare_with():
    if not others():
        pytest.skip(f"no other Python here has the packages; {NAMED}=PATH names one")
