"""Images reach policy and outcome as the data URLs that they were, and only peers with the feature get bytes."""

import asyncio
from base64 import b64encode
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, outcome_pb2, services_pb2_grpc
from osmosis_grpc.protocol.types import Callback, InitRequest, OutcomeStatus
from osmosis_grpc.protocol.wire.rollout import init_to_wire
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawAgentServer, RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import reply
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, Trainer, TrainerConfig
from tests.ports import quiet_port
from tests.waiting import until

PATIENCE = 15.0
IMAGES = [bytes([first, *range(256)]) * 40 for first in range(3)]


def url(image: bytes) -> str:
    return "data:image/png;base64," + b64encode(image).decode()


def question(number: int, role: str = "user") -> dict:
    text = {"type": "text", "text": f"What is in image {number}?"}
    return {"role": role, "content": [text, {"type": "image_url", "image_url": {"url": url(IMAGES[number])}}]}


class Looks(RolloutAgentLoop):
    """Shows an image with every chat. Waits before its second chat until it may go on."""

    name = "looks"
    replayable = True

    def __init__(self):
        self.asked, self.may = asyncio.Event(), asyncio.Event()
        self.may.set()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        assert list(ctx.request.messages) == [question(0)]
        messages = [*ctx.request.messages, (await ctx.chat(ctx.request.messages)).message, question(1)]
        self.asked.set()
        await self.may.wait()
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete([*messages, question(2)], reward=1.0)


class Sees:
    """A policy that keeps the messages it was asked with, by number of the chat."""

    def __init__(self):
        self.seen = {}

    def __call__(self, request):
        self.seen[request.chat_number] = list(request.messages)
        return answer(request, f"reply {request.chat_number}")


def said(number: int) -> dict:
    return {"role": "assistant", "content": f"reply {number}"}


CONVERSATION = [question(0), said(1), question(1), said(2), question(2)]
TRANSPORTS = {
    "attach": {},
    "attach full": {"config": TrainerConfig(delta=False)},
    "callback full": {"transport": "callback", "config": TrainerConfig(delta=False)},
    "callback delta": {"transport": "callback"},
}
REQUEST = RolloutRequest(rollout_id="r", messages=[question(0)])


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
async def test_images_are_the_data_urls_that_they_were(serve, stack, tmp_path, options, ledger):
    server, policy = await serve(Looks()), Sees()
    path = tmp_path / "ledger" if ledger else None
    async with Trainer([server.address], policy, ledger=path, **options) as trainer, asyncio.timeout(PATIENCE):
        outcome = await trainer.rollout(REQUEST)
        assert policy.seen == {1: CONVERSATION[:1], 2: CONVERSATION[:3]}
        assert list(outcome.messages) == CONVERSATION
    client = await stack.enter_async_context(RolloutClient(server.address))
    assert list((await client.get("r")).outcome.messages) == CONVERSATION


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
async def test_images_come_back_from_the_ledger(serve, tmp_path, options):
    agent = Looks()
    agent.may.clear()
    server = await serve(agent, trainer_grace=PATIENCE)

    def trainer(policy):
        return Trainer([server.address], policy, ledger=tmp_path / "ledger", **options)

    async with asyncio.timeout(PATIENCE):
        async with trainer(Sees()) as first:
            running = asyncio.ensure_future(first.rollout(REQUEST))
            await agent.asked.wait()
        await asyncio.wait({running})
        running.exception()
        policy = Sees()
        async with trainer(policy) as second:
            running = asyncio.ensure_future(second.rollout(REQUEST))
            agent.may.set()
            outcome = await running
    assert outcome.status is OutcomeStatus.COMPLETED
    assert (policy.seen, list(outcome.messages)) == ({2: CONVERSATION[:3]}, CONVERSATION)


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
async def test_images_come_back_from_the_journal(tmp_path, options):
    """The agent runs again, with the messages of the journal, and asks the recorded question."""

    port = quiet_port()

    def server(agent):
        return AgentServer([agent], port=port, config=ServerConfig(retry_delay=(0.05, 0.2)), state_dir=tmp_path)

    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        agent, policy, stopping = Looks(), Sees(), AsyncExitStack()
        agent.may.clear()
        first = await stopping.enter_async_context(server(agent))
        trainer = await stack.enter_async_context(Trainer([first.address], policy, **options))
        running = asyncio.ensure_future(trainer.rollout(REQUEST))
        await agent.asked.wait()
        await stopping.aclose()
        await stack.enter_async_context(server(Looks()))
        outcome = await running
    assert outcome.status is OutcomeStatus.COMPLETED
    assert (policy.seen, list(outcome.messages)) == ({1: CONVERSATION[:1], 2: CONVERSATION[:3]}, CONVERSATION)


# What the peers get.


def has_bytes(message, number: int) -> bool:
    """Returns whether a message has an image as bytes. Otherwise it has its data URL."""
    data = message.SerializeToString()
    assert (IMAGES[number] in data) is not (url(IMAGES[number]).encode() in data)
    return IMAGES[number] in data


@pytest.mark.parametrize("features", [[], ["blobs", "something else"]], ids=["without", "with"])
async def test_an_attached_trainer_gets_bytes_if_it_has_the_feature(serve, stack, features):
    server = await serve(Looks())
    raw = await stack.enter_async_context(RawTrainer(server.address))
    await raw.attach(features=features)
    plain = await stack.enter_async_context(RolloutClient(server.address))
    assert "blobs" in (await plain.info()).features
    sent = init_to_wire(InitRequest(request=REQUEST), blobs=True)  # the server has the feature
    await raw.send(attach_pb2.TrainerFrame(init=sent))
    for number in range(2):
        chat = await raw.chat()
        assert has_bytes(chat, number) is bool(features)
        await raw.answer(chat, f"reply {number + 1}")
    outcome = await raw.outcome()
    assert has_bytes(outcome, 2) is bool(features)
    other = [] if features else ["blobs"]
    await raw.attach(features=other)
    assert has_bytes(await raw.outcome(), 2) is bool(other), "the next stream has its own features"


class Records(services_pb2_grpc.TrainerServiceServicer):
    """A trainer for callbacks that keeps the messages it gets."""

    def __init__(self):
        self.chats, self.outcomes = [], []

    async def Chat(self, request, context):
        self.chats.append(request)
        return reply(f"reply {request.chat_number}")

    async def Complete(self, request, context):
        self.outcomes.append(request.outcome)
        return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)


@pytest.mark.parametrize("features", [(), ("blobs",)], ids=["without", "with"])
@pytest.mark.parametrize("delta", [False, True], ids=["full", "delta"])
async def test_a_callback_trainer_gets_bytes_if_it_has_the_feature(serve, stack, features, delta):
    server, records = await serve(Looks()), Records()
    listener = grpc.aio.server()
    services_pb2_grpc.add_TrainerServiceServicer_to_server(records, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    client = await stack.enter_async_context(RolloutClient(server.address))
    await client.init(REQUEST, callback=Callback(target=f"127.0.0.1:{port}", delta=delta, features=features))
    await until(lambda: records.outcomes)
    assert [has_bytes(chat, number) for number, chat in enumerate(records.chats)] == [bool(features)] * 2
    assert has_bytes(records.outcomes[0], 2) is bool(features)


@pytest.mark.parametrize("features", [[], ["blobs"]], ids=["without", "with"])
async def test_an_agent_server_gets_bytes_if_it_has_the_feature(stack, features):
    trainer = await stack.enter_async_context(Trainer([], Sees(), listen="127.0.0.1:0"))
    raw = await stack.enter_async_context(RawAgentServer(trainer.address))
    await raw.attach(features=features, agent_loops=["looks"])
    running = asyncio.ensure_future(trainer.rollout(replace(REQUEST, agent_loop="looks")))
    request = await raw.accept()
    assert has_bytes(request, 0) is bool(features)
    answered = await raw.ask(request, full=chat_pb2.FullHistory(messages=request.spec.messages))
    assert answered.response.message.text == "reply 1"
    await raw.complete(request)
    async with asyncio.timeout(PATIENCE):
        assert (await running).status is OutcomeStatus.COMPLETED
