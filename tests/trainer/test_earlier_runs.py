"""What a user of the README's loop sees when it runs a second time: nothing old passes for new."""

import pytest

from tests.trainer.scripts import ATTACHED, Folder

WARNING = "32 of 32 outcomes came from an earlier run of the {}; use new ids or attempt=2 to run them again"


@pytest.mark.slow
def test_the_second_run_against_the_same_server_warns_on_both_sides(tmp_path):
    with Folder(tmp_path) as folder:
        told, stderr = folder.train(ATTACHED)
        assert (told["done"], told["chats"], told["earlier"], stderr) == (32, 32, 0, "")
        assert "earlier run" not in folder.log()

        told, stderr = folder.train(ATTACHED)
        assert (told["done"], told["chats"], told["earlier"]) == (32, 0, 32)
        assert told["same_process"] == [True]
        assert told["changed"] == [False]
        assert told["ended"] > 0
        assert WARNING.format("trainer") in stderr
        assert "run of the server" not in stderr, "the server is the same"
        assert len(stderr.splitlines()) == 2, "one line at the first, one with the total"
        assert "source has changed" not in stderr
        folder.server_warns("32 Inits asked for rollouts that had ended in an earlier run")

        told, stderr = folder.train(ATTACHED, attempt=2)
        assert (told["chats"], told["earlier"], stderr) == (32, 0, "")
        told, stderr = folder.train(ATTACHED, name="step2")
        assert (told["chats"], told["earlier"], stderr) == (32, 0, "")


@pytest.mark.slow
def test_a_changed_agent_is_named_after_a_restart_of_the_server(tmp_path):
    with Folder(tmp_path, reward=1.0) as folder:
        told, _ = folder.train(ATTACHED)
        assert told["rewards"] == [1.0]
        folder.set_reward(2.0)
        folder.restart()

        told, stderr = folder.train(ATTACHED)
        assert (told["rewards"], told["chats"], told["earlier"]) == ([1.0], 0, 32)
        assert told["same_process"] == [False]
        assert told["changed"] == [True]
        assert told["changes"] == ["helpers.py"]
        assert WARNING.format("server") in stderr
        assert "the source of agent loop greeter has changed since" in stderr
        assert "helpers.py" in stderr
        folder.server_warns("the source of agent loop greeter has changed since")

        told, stderr = folder.train(ATTACHED, attempt=2)
        assert (told["rewards"], told["chats"], told["earlier"], stderr) == ([2.0], 32, 0, "")
