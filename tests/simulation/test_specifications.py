"""The specification of a rollout at a server, without a history."""

import pytest

from tests.simulation.linearizability import Call, stuck_at
from tests.simulation.specifications import AtServer, at_server

INIT = Call("Init", (1, "spec"), ("OK", True), 1, 2)


def cancel(*answer):
    return Call("Cancel", 1, answer, 5, 6)


def end(status):
    """An end, seen when its outcome was sent for the first time."""
    return Call("end", (1, status), "", 1, 7)


@pytest.mark.parametrize(
    ("calls", "explained"),
    [
        ([cancel("ALREADY_ENDED", "FAILED"), end("FAILED")], True),
        ([cancel("ALREADY_ENDED", "FAILED")], True),  # the outcome never left its server
        ([cancel("ALREADY_ENDED", "FAILED"), end("CANCELLED")], False),
        ([cancel("ALREADY_ENDED", "CANCELLED")], False),
        ([cancel("CANCELLED", "RUNNING"), end("CANCELLED")], True),
        ([cancel("CANCELLED", "RUNNING"), end("FAILED")], False),
        ([cancel("ALREADY_ENDED", "RUNNING"), end("FAILED")], True),
    ],
)
def test_a_cancel_fits_the_end_of_its_attempt(calls, explained):
    assert (stuck_at([INIT, *calls], AtServer(), at_server) is None) == explained
