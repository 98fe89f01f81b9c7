"""A seed gives the same history in each process, whatever the hash seed of Python and the addresses of its objects."""

import os
import re

import pytest

from tests.processes import run


def digests(hash_seed):
    """Return the lines with the digests of some seeds, from a process of its own."""
    command = ["-m", "tests.simulation", "--seed", "101", "--rollouts", "64", "--digest", "--keep-going"]
    done = run(*command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, timeout=120)
    return re.findall(r"^\d+ [0-9a-f]{32}$", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_two_processes_with_two_hash_seeds_have_equal_digests():
    first = digests("1")
    assert len(first) >= 2
    assert digests("2") == first
