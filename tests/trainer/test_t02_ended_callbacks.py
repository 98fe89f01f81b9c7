"""An Init with a callback that finds an ended rollout gives its outcome."""

import pytest

from tests.trainer.scripts import CALLED_BACK, Folder


@pytest.mark.slow
def test_t02_a_trainer_server_script_that_runs_twice_with_one_id_gets_the_outcome_of_then(tmp_path):
    with Folder(tmp_path) as folder:
        (first, again), stderr = folder.train(CALLED_BACK, "r1")
        assert (first["started"], first["reward"], first["earlier"]) == (True, 1.0, [False] * 3)
        assert (again["started"], again["reward"], again["earlier"]) == (False, 1.0, [False] * 3)
        assert stderr == ""

        (first, again), stderr = folder.train(CALLED_BACK, "r1")
        for row in (first, again):
            assert (row["started"], row["reward"], row["earlier"]) == (False, 1.0, [True] * 3)
        assert "came from an earlier run of the trainer; use new ids or attempt=2" in stderr
        folder.server_warns("asked for rollouts that had ended in an earlier run")

        folder.restart()
        (first, _), stderr = folder.train(CALLED_BACK, "r1")
        assert first["earlier"] == [True] * 3
        assert "came from an earlier run of the server; use new ids or attempt=2" in stderr
        (first, _), stderr = folder.train(CALLED_BACK, "r1", 2)
        assert (first["started"], first["earlier"], stderr) == (True, [False] * 3, "")
