"""A callback trainer that starts again with its ledger at another address gets what its servers still have for it."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import collect, within
from tests.waiting import until


class LosingReplies(grpc.GenericRpcHandler):
    """Forwards callbacks to a trainer and loses the replies to outcomes."""

    async def __aenter__(self):
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *exc):
        await self._server.stop(None)

    def connect(self, address):
        """Forward to this address from now on."""
        self._channel = grpc.aio.insecure_channel(address)

    def service(self, call):
        async def forward(request, context):
            shown = [(key, value) for key, value in context.invocation_metadata() if key == "authorization"]
            answer = await self._channel.unary_unary(call.method)(request, metadata=shown)
            if call.method.endswith("/Complete"):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(forward)


@pytest.mark.parametrize("confirmed", [False, True])
async def test_an_outcome_that_the_ledger_has_is_no_longer_undelivered(serve, tmp_path, confirmed):
    server, asked = await serve(talker()), []
    options = {"transport": "callback", "ledger": tmp_path / "ledger"}

    def policy(request):
        asked.append(request)
        return reply(request)

    async with LosingReplies() as relay:
        config = TrainerConfig(callback_target=relay.address)
        async with Trainer(server.address, policy, config=config, **options) as trainer:
            relay.connect(trainer.address)
            outcome = await within(trainer.rollout(rollout_id="r", messages=[USER]))
            if confirmed:
                await outcome.confirm()
    assert server.engine.capacity().undelivered == 1
    chats = len(asked)
    async with Trainer(server.address, policy, **options) as trainer:
        await until(lambda: not server.engine.capacity().undelivered)
        left = await within(collect(trainer.unconfirmed()))
        assert left == ([] if confirmed else [outcome])
    assert len(asked) == chats


async def test_a_rollout_that_ended_while_no_trainer_was_there_is_delivered(serve, tmp_path):
    agent = talker()
    agent.gate("r")
    server, request = await serve(agent), {"rollout_id": "r", "messages": [USER], "metadata": {"turns": 0}}
    options = {"transport": "callback", "ledger": tmp_path / "ledger"}
    async with Trainer(server.address, reply, **options) as trainer:
        running = asyncio.ensure_future(trainer.rollout(**request))
        await until(lambda: agent.started)
    await asyncio.wait({running})
    agent.release()
    await until(lambda: server.engine.capacity().undelivered)
    async with Trainer(server.address, reply, **options) as trainer:
        outcome = await within(trainer.rollout(**request))
        assert (outcome.status, outcome.attempt) == (OutcomeStatus.COMPLETED, 1)
        await until(lambda: not server.engine.capacity().undelivered)


async def test_a_rollout_of_another_trainer_is_left_alone(serve, train, tmp_path):
    """It is undelivered at the same server, and its callback stays."""
    agent = talker()
    agent.gate("theirs")
    server = await serve(agent)
    async with Trainer(server.address, reply, transport="callback") as theirs:
        running = asyncio.ensure_future(theirs.rollout(rollout_id="theirs", messages=[USER], metadata={"turns": 0}))
        await until(lambda: agent.started)
        target = theirs.address
    await asyncio.wait({running})
    agent.release()
    await until(lambda: server.engine.capacity().undelivered)
    async with Trainer(server.address, reply, transport="callback", ledger=tmp_path / "ledger") as trainer:
        assert (await within(trainer.rollout(rollout_id="mine", messages=[USER]))).status is OutcomeStatus.COMPLETED
    assert server.engine.rollouts.get("", "theirs").init.callback.target == target
