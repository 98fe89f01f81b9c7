"""An Init with a callback that finds an ended rollout gives its outcome."""

import pytest

from tests.trainer.scripts import CALLED_BACK, Folder


@pytest.mark.slow
def test_a_callback_script_that_runs_twice_with_one_id_gets_the_outcome_of_then(tmp_path):
    def outcome(*, chats: int, earlier: bool) -> dict[str, object]:
        return {"chats": chats, "reward": 1.0, "kept": 1.0, "messages": 2, "earlier": earlier}

    with Folder(tmp_path) as folder:
        assert folder.train(CALLED_BACK, "r1") == (outcome(chats=1, earlier=False), "")

        again, stderr = folder.train(CALLED_BACK, "r1")
        assert again == outcome(chats=0, earlier=True)
        assert "came from an earlier run of the trainer; use new ids or attempt=2" in stderr
        folder.server_warns("asked for rollouts that had ended in an earlier run")

        folder.restart()
        again, stderr = folder.train(CALLED_BACK, "r1")
        assert again == outcome(chats=0, earlier=True)
        assert "came from an earlier run of the server; use new ids or attempt=2" in stderr
        assert folder.train(CALLED_BACK, "r1", 2) == (outcome(chats=1, earlier=False), "")
