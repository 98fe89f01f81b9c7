"""A failpoint kills the process and prints its name, which the kill loop reads."""

import signal

import pytest

from osmosis_grpc.engine import failpoints
from tests.processes import run

CHILD = """
from osmosis_grpc.engine import failpoints
failpoints.arm("other,here:2")
for passing in (1, 2, 3):
    failpoints.reach("here")
    print("passed", passing, flush=True)
"""


def test_the_nth_passing_is_the_last_and_says_so():
    done = run("-c", CHILD)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "passed 1\n")
    assert done.stderr == "killed at failpoint here\n"


@pytest.mark.parametrize("text", ["here:0", "here:-1", "here:x", ":2"])
def test_a_count_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        failpoints.arm(text)
    assert not failpoints.armed
