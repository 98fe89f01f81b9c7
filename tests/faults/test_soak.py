"""Short runs of the soak and of the disk budget's check. `make faults` runs the long ones."""

import pytest

from tests.programs import figures_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("disks", [False, True])
def test_a_short_soak_leaks_nothing(tmp_path, disks):
    kept = ("--state-dir", str(tmp_path / "state"), "--ledger", str(tmp_path / "ledger")) if disks else ()
    result = figures_of("tests.faults.soak", "--rollouts", "300", "--ttl", "1", "--rate", "200", *kept)
    assert result["rollouts_counted"] >= 250
    assert result["before"]["tasks"] == result["after"]["tasks"]
    assert result["before"]["fds"] == result["after"]["fds"]


def test_a_short_run_keeps_its_journal_small():
    result = figures_of(
        "tests.faults.housekeeping", "--rollouts", "1500", "--ttl", "1", "--budget", "10", "--quiet", "90"
    )
    assert result["most_mb"] < 20
    assert result["left_mb"] < 2
