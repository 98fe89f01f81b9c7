"""ARL row 31: a process is killed while rollouts run programs in sandboxes and trajectories are saved."""

import pytest

from tests.programs import figures_of


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    "rollouts", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.long)]
)
@pytest.mark.row("ARL 31")
def test_a_killed_server_leaves_nothing_and_its_next_process_ends_every_rollout(rollouts):
    """The benchmark fails if a process or a folder is left, or if a rollout or a trajectory is lost or not whole."""
    made = figures_of("benchmarks.killed_server", "--rollouts", str(rollouts), "--saved", "20", timeout=1200)
    assert made["server_records"] == rollouts + made["server_short_rollouts"] >= rollouts + 20
    assert made["file_records"] > 20
    for name in ("server_clean_s", "file_clean_s", "server_start_s", "server_recover_s"):
        assert made[name] > 0
