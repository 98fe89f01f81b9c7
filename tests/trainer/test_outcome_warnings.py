"""Outcomes of an earlier run, and rollouts that leave nothing to train on: a warning first, then a count."""

import asyncio

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import ChatResponse, RolloutRequest, Trainer
from tests.trainer.conftest import PATIENCE, USER, talker
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


REASON = "main: chat 1: the reply came without token ids"
FIRST = f"rollout {{}} completed but is not trainable: {REASON}"


def without_ids(request):
    return ChatResponse(message={"role": "assistant", "content": "fine"})


def with_ids(request):
    return answer(request, "fine")


def requests(name, count):
    return [RolloutRequest(rollout_id=f"{name}-{n}", messages=[USER]) for n in range(count)]


def said(caplog):
    """What the trainer warned of."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("osmosis_grpc.trainer")]


async def run(trainer, name, count):
    async with asyncio.timeout(PATIENCE):
        return [outcome async for outcome in trainer.run(requests(name, count))]


@pytest.mark.parametrize("count", [1, 4])
async def test_the_first_one_and_the_total_are_said(serve, caplog, count):
    async with Trainer([(await serve(talker())).address], without_ids) as trainer:
        outcomes = await run(trainer, "a", count)
        assert {outcome.not_trainable_reason for outcome in outcomes} == {REASON}
        assert len(said(caplog)) == 1
        assert said(caplog)[0] in [FIRST.format(outcome.rollout_id) for outcome in outcomes]
        assert len(await run(trainer, "b", count)) == count
        assert len(said(caplog)) == 1
    assert said(caplog)[1:] == [
        f"{2 * count} of {2 * count} completed rollouts are not trainable; the first one: {REASON}"
    ]


async def test_trainable_rollouts_and_evaluations_are_not_logged(serve, caplog):
    server = await serve(talker())
    async with Trainer([server.address], with_ids) as trainer:
        await run(trainer, "a", 2)
    async with Trainer([server.address], without_ids) as trainer:
        await trainer.evaluate(requests("e", 2))
    assert said(caplog) == []
