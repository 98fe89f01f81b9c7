"""A trainer that was away, over real sockets: its first outcome that gets through lets the others go."""

import asyncio
import itertools

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import Callback, InitRequest, OutcomeStatus, RolloutRequest
from osmosis_grpc.server.callbacks import Callbacks
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
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
