"""An Init with a callback that finds an ended rollout gives its outcome."""

import pytest

from tests.trainer.scripts import CALLED_BACK, Folder


@pytest.mark.slow
def test_a_callback_script_that_runs_twice_with_one_id_gets_the_outcome_of_then(tmp_path):
    with Folder(tmp_path) as folder:
        told, stderr = folder.train(CALLED_BACK)
        assert (told["done"], told["chats"], told["earlier"], stderr) == (32, 32, 0, "")
        for owner in ("trainer", "server"):
            told, stderr = folder.train(CALLED_BACK)
            assert (told["rewards"], told["chats"], told["earlier"]) == ([1.0], 0, 32)
            assert f"came from an earlier run of the {owner}; use new ids or attempt=2" in stderr
            folder.server_warns("asked for rollouts that had ended in an earlier run")
            folder.restart()
        told, stderr = folder.train(CALLED_BACK, attempt=2)
        assert (told["chats"], told["earlier"], stderr) == (32, 0, "")
