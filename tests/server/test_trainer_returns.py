"""Trainers that come back: they list the rollouts for which they wait, and the first outcome lets the others go."""

import asyncio
import itertools

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, error_pb2, outcome_pb2
from osmosis_grpc.protocol.types import Callback, InitRequest, OutcomeStatus, RolloutRequest
from osmosis_grpc.server.callbacks import Callbacks
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import recorded
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.server.attached import Talk
from tests.waiting import until

QUESTION = [{"role": "user", "content": "hello"}]


class Waiter(RolloutAgentLoop):
    name = "waiter"

    def __init__(self):
        self.go = asyncio.Event()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await self.go.wait()
        return ctx.complete(QUESTION, reward=1.0)


async def test_all_outcomes_come_with_the_first(serve, stack):
    waiter = Waiter()
    server = await serve(waiter, outbox_delay=(3600.0, 3600.0))
    client = await stack.enter_async_context(RolloutClient(server.address))
    names = [f"r{number}" for number in range(30)]
    port = quiet_port()
    async with CallbackTrainer(EchoPolicy(), port=port, tokens="the same in both") as trainer:
        for name in names:
            await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
    waiter.go.set()
    async with asyncio.timeout(30):
        await until(lambda: server.engine.capacity().undelivered == len(names) and not server.engine.capacity().running)
        await until(lambda: not any(record.calls for record in server.engine.context.table.in_memory()))
    async with CallbackTrainer(EchoPolicy(), port=port, tokens="the same in both") as trainer:
        coming = asyncio.gather(*(trainer.outcome(name, timeout=30) for name in names))
        for number in itertools.count():  # until the channel is connected again, none gets through
            await client.init(rollout_id=f"new {number}", messages=QUESTION, callback=trainer.callback())
            if (await asyncio.wait({coming}, timeout=0.1))[0]:
                break
        assert {outcome.status for outcome in await coming} == {OutcomeStatus.COMPLETED}


@pytest.mark.parametrize("later", [False, True])
async def test_callbacks_of_one_trainer_are_recognized(later):
    callbacks = Callbacks(TargetPolicy(loopback=True))
    peers = []
    try:
        for target, credential in (("127.0.0.1:1", "a"), ("127.0.0.1:1", "b"), ("127.0.0.1:2", "a")):
            request = RolloutRequest(rollout_id="r", messages=[])
            init = InitRequest(request=request, callback=Callback(target=target, credential=credential))
            peers.append(callbacks.later(init) if later else await callbacks.peer(init))
        assert peers[0].destination_key == peers[1].destination_key != peers[2].destination_key
        assert len({peer.key for peer in peers}) == 3
    finally:
        await callbacks.close()


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
