"""A command ends with a message when a call of C code takes too long."""

import pytest

from tests.processes import run

BLOCKED = """
import sys
from osmosis_grpc.cli.daemon_thread import exit_after

with exit_after(float(sys.argv[1]), "too late"):
    exec(sys.argv[2])
print("done")
"""
UNINTERRUPTED = "import _thread; lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()"


@pytest.mark.parametrize(
    ("seconds", "code", "ended"),
    [("0.1", UNINTERRUPTED, (2, "", "too late\n")), ("60", "pass", (0, "done\n", ""))],
    ids=["late", "in time"],
)
def test_a_block_ends_within_its_time_or_the_process_says_why(seconds, code, ended):
    done = run("-c", BLOCKED, seconds, code)
    assert (done.returncode, done.stdout, done.stderr) == ended
