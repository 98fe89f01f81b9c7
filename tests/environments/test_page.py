"""The blocks of docs/environments.md: an environment of one's own, and a trainer of a real one."""

import re

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.rollouts import run_rollout
from tests.ports import quiet_port
from tests.processes import ROOT, run, server_process

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "environments.md").read_text(), re.M | re.S)
FILES = {block.split("\n")[0].removeprefix("# "): block for block in BLOCKS if block.startswith("# ")}


async def test_the_environment_of_the_page_rewards_a_guess():
    written = {}
    exec(FILES["my_environment.py"], written)
    dice = written["dice"]
    guesses = iter(["1 or 2", "3 or 4", "5 or 6"])
    metadata = {"task_id": dice.task_id("0")}
    outcome = await run_rollout(dice, lambda chat: answer(chat, next(guesses)), dice.opening, metadata=metadata)
    assert outcome.status is OutcomeStatus.COMPLETED
    turns = outcome.reward_components["guesses"]
    assert outcome.reward == 1 / turns


@pytest.mark.environments
def test_the_trainer_of_the_page_gets_batches(tmp_path):
    pytest.importorskip("reasoning_gym")
    port = quiet_port()
    (tmp_path / "train.py").write_text(FILES["train.py"].replace("127.0.0.1:50051", f"127.0.0.1:{port}"))
    options = ("--env", "reasoning-gym:leg_counting,size=500", "--grpc-port", str(port), "--no-journal")
    with server_process(*options, cwd=tmp_path):
        done = run(str(tmp_path / "train.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 12
