"""A trainer that comes back with another attachment id, and lists the rollouts for which it waits."""

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, error_pb2, outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import recorded
from tests.server.attached import Talk
from tests.waiting import until

COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED


def open_rollouts(*names: str) -> attach_pb2.TrainerFrame:
    """Returns a frame that lists attempt 1 of these rollouts."""
    refs = [attach_pb2.RolloutRef(rollout_id=name, attempt=1) for name in names]
    return attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=refs))


async def test_a_listed_rollout_moves_to_the_attachment_that_lists_it(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as before, RawTrainer(server.address) as after:
        await before.attach()
        await before.start("r")
        asked = await before.chat()
        await before.stream.cut()
        await after.attach()
        await after.send(open_rollouts("r", "unknown"))
        unknown = await after.stream.next("unknown_rollouts")
        assert [ref.rollout_id for ref in unknown.rollouts] == ["unknown"]
        assert await after.chat() == asked
        await after.answer(asked)
        assert (await after.settled()).status == COMPLETED


async def test_the_undelivered_outcome_of_a_listed_rollout_goes_to_the_attachment_that_lists_it(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as before, RawTrainer(server.address) as after:
        await before.attach()
        await before.start("r")
        await before.answer(await before.chat())
        outcome = await before.outcome()
        await before.stream.cut()
        await after.attach()
        await after.send(open_rollouts("r"))
        moved = await after.settled()
        assert (moved.result_id, moved.status) == (outcome.result_id, COMPLETED)
        await until(lambda: server.engine.capacity().undelivered == 0)


async def test_the_settled_outcome_of_a_listed_rollout_is_sent_again(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        await trainer.answer(await trainer.chat())
        outcome = await trainer.outcome()
        refused = recorded(outcome)
        refused.complete_reply.status.CopyFrom(error_pb2.Status(code=grpc.StatusCode.ABORTED.value[0], message="no"))
        await trainer.send(refused)
        await until(lambda: server.engine.capacity().undelivered == 0)
        await trainer.stream.cut()
        await trainer.attach()
        await trainer.send(open_rollouts("r"))
        assert await trainer.settled() == outcome
        await trainer.send(open_rollouts("r"))
        assert await trainer.settled() == outcome
