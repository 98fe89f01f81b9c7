"""Outcomes that one owner's trainer does not take fill that owner's share, and no other's."""

import pytest

from osmosis_grpc.protocol.errors import ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import InitRequest, OutcomeStatus, RolloutRequest

TEXT = {"role": "user", "content": "x" * 5000}


async def done(ctx):
    return ctx.complete([TEXT], reward=1.0)


async def test_undelivered_completions_of_one_owner_refuse_no_other(hosting):
    async with hosting(done, memory_budget=40_000) as h:
        away = h.Trainer()
        away.answers = [Unavailable("away")] * 100_000

        async def start(owner, rollout_id, peer):
            request = RolloutRequest(rollout_id=rollout_id, messages=[TEXT])
            init = InitRequest(request=request, digest=repr(request).encode())
            return (await h.engine.init(init, owner=owner, peer=peer))[0]

        with pytest.raises(ResourceExhausted):
            for number in range(20):
                record = await start("hostile", f"a{number}", away.peer)
                await h.until(lambda record=record: record.delivery.undelivered)
        for number in range(10):
            record = await start("other", f"b{number}", h.trainer.peer)
            assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
            await h.until(lambda record=record: record.delivery.settled)
        kept = [row.rollout_id for row in (await h.engine.rollouts.page("other"))[0]]
        assert kept[-1] == "b9", "they are kept for their time, in the owner's own share"
        with pytest.raises(ResourceExhausted):
            await start("hostile", "last", away.peer)
