"""A rollout that completes and leaves nothing to train on is said once, and counted in the end."""

import asyncio

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.trainer import ChatResponse, RolloutRequest, Trainer
from tests.trainer.conftest import PATIENCE, USER, talker

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
