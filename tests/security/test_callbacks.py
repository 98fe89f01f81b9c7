"""A callback carries a credential of its own, made for its rollout: a stranger's outcome or chat is refused."""

import asyncio

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.network.bearer_tokens import narrowed
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, outcome_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Callback, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.security.conftest import TOKEN
from tests.waiting import PATIENCE, ended, until

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]


class Waiter(RolloutAgentLoop):
    """Sends one chat when the test releases it."""

    name = "waiter"

    def __init__(self):
        self.go = asyncio.Event()
        self.started = 0

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        self.started += 1
        await self.go.wait()
        await ctx.chat(ctx.request.messages)
        return ctx.complete(ctx.request.messages, reward=1.0)


class Policy:
    """Counts its calls."""

    def __init__(self):
        self.asked = []

    def __call__(self, request):
        self.asked.append(request.rollout_id)
        return answer(request, "three", tokens=2)


def forged(rollout_id):
    """An outcome that no server reported."""
    outcome = outcome_pb2.RolloutOutcome(
        rollout_id=rollout_id,
        attempt=1,
        result_id="0" * 32,
        status=outcome_pb2.OUTCOME_STATUS_COMPLETED,
        finish_reason="stop",
        reward=1000.0,
    )
    return outcome_pb2.CompleteRequest(outcome=outcome)


def chat(rollout_id):
    request = chat_pb2.ChatRequest(rollout_id=rollout_id, attempt=1, sample="main", chat_number=1)
    request.full.messages.add(role="user", text="hello")
    return request


async def statuses(trainer, rollout_id, credential):
    """How Complete and Chat of a stranger end."""
    async with grpc.aio.insecure_channel(trainer.address) as channel:
        stub = services_pb2_grpc.TrainerServiceStub(channel)
        metadata = (("authorization", f"Bearer {credential}"),) if credential else None
        codes = []
        for call, request in ((stub.Complete, forged(rollout_id)), (stub.Chat, chat(rollout_id))):
            try:
                await call(request, metadata=metadata, timeout=10)
                codes.append("OK")
            except grpc.aio.AioRpcError as error:
                codes.append(error.code().name)
        return codes


def trainer_of(server, policy=None, **options):
    return Trainer(server.address, policy or Policy(), transport="callback", **options)


def begin(trainer, rollout_id):
    return asyncio.ensure_future(asyncio.wait_for(trainer.rollout(rollout_id=rollout_id, messages=QUESTION), PATIENCE))


def given(server, rollout_id):
    """The credential that the agent server got for a rollout."""
    return server.engine.rollouts.get("", rollout_id).init.callback.credential


@pytest.fixture(params=["without tokens", "with tokens", "with a ledger"])
def options(request, tmp_path):
    options = {"with tokens": {"security": ServerSecurity(TOKEN)}, "with a ledger": {"ledger": tmp_path / "ledger"}}
    return options.get(request.param, {})


async def test_a_strangers_outcome_and_chat_are_refused(stack, options):
    agent, policy = Waiter(), Policy()
    server = await stack.enter_async_context(AgentServer([agent], port=0))
    trainer = await stack.enter_async_context(trainer_of(server, policy, **options))
    other = await stack.enter_async_context(trainer_of(server))
    running = [begin(trainer, "known"), begin(trainer, "another"), begin(other, "stranger")]
    await until(lambda: agent.started == 3)
    for credential in ("", "wrong", "cb1..", given(server, "stranger"), given(server, "known")[:-1]):
        assert await statuses(trainer, "known", credential) == ["UNAUTHENTICATED"] * 2, credential
    assert await statuses(trainer, "known", given(server, "another")) == ["PERMISSION_DENIED"] * 2
    assert policy.asked == []
    agent.go.set()
    outcome, *_ = await asyncio.gather(*running)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert sorted(policy.asked) == ["another", "known"]


async def test_an_agent_server_gets_a_credential_for_its_rollout_alone(stack):
    trainer = await stack.enter_async_context(CallbackTrainer(Policy()))
    server = await stack.enter_async_context(AgentServer([Waiter()], port=0))
    client = await stack.enter_async_context(RolloutClient(server.address))
    callback = trainer.callback()
    await client.init(rollout_id="r", messages=QUESTION, callback=callback)
    given = server.engine.rollouts.get("", "r").init.callback
    assert given.credential == narrowed(callback.credential, "r") == trainer.callback(rollout_id="r").credential
    assert await statuses(trainer, "s", given.credential) == ["PERMISSION_DENIED"] * 2
    again = await client.init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
    assert not again.created
    assert server.engine.rollouts.get("", "r").init.callback == given, "an equal Init re-points nothing"


async def test_another_credential_than_the_trainers_is_refused_at_once(stack):
    trainer = await stack.enter_async_context(CallbackTrainer(Policy()))
    with pytest.raises(ValueError, match="credential"):
        trainer.callback(credential="whatever")


async def test_a_trainer_with_a_ledger_knows_its_callbacks_after_a_restart(stack, tmp_path):
    agent, ledger = Waiter(), tmp_path / "ledger"
    server = await stack.enter_async_context(AgentServer([agent], port=0))
    async with trainer_of(server, ledger=ledger) as first:
        running = begin(first, "r")
        await until(lambda: agent.started)
        credential = given(server, "r")
    with pytest.raises(Unavailable, match="the trainer was closed"):
        await running
    async with trainer_of(server, ledger=ledger, listen=first.address) as second:
        agent.go.set()
        assert (await begin(second, "r")).status is OutcomeStatus.COMPLETED
        assert given(server, "r") == credential


async def test_a_callback_made_by_hand_without_a_credential_fails_its_own_rollout(stack):
    agent, policy = Waiter(), Policy()
    agent.go.set()
    server = await stack.enter_async_context(AgentServer([agent], port=0))
    trainer = await stack.enter_async_context(CallbackTrainer(policy))
    client = await stack.enter_async_context(RolloutClient(server.address))
    await client.init(rollout_id="r", messages=QUESTION, callback=Callback(target=trainer.address))
    outcome = await asyncio.wait_for(ended(client, "r"), 30)
    assert outcome.status is OutcomeStatus.FAILED
    assert policy.asked == []
