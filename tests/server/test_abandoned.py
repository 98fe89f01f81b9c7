"""A raw trainer is told which replies are no longer wanted, and leaves in good order."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import (
    RolloutServiceStub,
    TrainerServiceServicer,
    add_TrainerServiceServicer_to_server,
)
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.raw import RawTrainer, trainer_frames
from tests.server.attached import Talk

FEATURES = ["abandon_chat", "goodbye"]


async def abandoned(trainer):
    """The next AbandonChat: sample, chat number, reason."""
    message = await trainer.stream.next("abandon_chat")
    return message.attempt, message.sample, message.chat_number, message.reason


async def test_an_attempt_that_is_superseded_is_abandoned_as_a_whole(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, RawTrainer(server.address) as other:
        await trainer.attach(features=FEATURES)
        await other.attach(features=FEATURES)
        await trainer.start("r")
        await trainer.chat()
        await other.start("r", attempt=2)
        assert await abandoned(trainer) == (1, "", 0, "SUPERSEDED")
        assert (await other.finish()).attempt == 2
        stream = await trainer.attach(features=FEATURES)
        ref = attach_pb2.RolloutRef(rollout_id="r", attempt=1)
        await trainer.send(attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=[ref])))
        assert not (await stream.next("unknown_rollouts")).rollouts
        assert await abandoned(trainer) == (1, "", 0, "SUPERSEDED"), "the first frame may be lost with its stream"


async def test_an_abandoned_chat_is_no_longer_open(serve):
    """The window is one chat. No answer comes to the abandoned chat, and the next chat is sent."""
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach(features=FEATURES, max_open_chats=1)
        await trainer.start("r")
        await trainer.chat()
        await trainer.start("s")
        await trainer.send(trainer_frames.cancel("c", rollout_id="r"))
        chat = await trainer.chat()
        assert chat.rollout_id == "s"
        await trainer.answer(chat)
        assert {(await trainer.settled()).rollout_id for _ in "rs"} == {"r", "s"}


async def test_a_reply_that_the_next_process_needs_stays_wanted(tmp_path):
    """A server that stops keeps its rollout in the journal, and asks the same chat again after its start."""

    class Replays(Talk):
        replayable = True

    server = AgentServer([Replays()], port=0, state_dir=tmp_path)
    async with server:
        trainer = RawTrainer(server.address)
        stream = await trainer.attach(features=FEATURES)
        await trainer.start("r")
        await trainer.chat()
        await server.stop(0.0)
        assert await stream.ended() == "UNAVAILABLE"
        assert [ref.rollout_id for ref in stream.all("goodbye")[0].kept] == ["r"]
        assert not stream.count("abandon_chat")


class SilentTrainer(TrainerServiceServicer):
    """Answers no chat, and keeps the other calls."""

    def __init__(self):
        self.asked, self.abandoned, self.completed = asyncio.Queue(), asyncio.Queue(), asyncio.Queue()

    async def Chat(self, request, context):
        await self.asked.put(request)
        await asyncio.Event().wait()

    async def AbandonChat(self, request, context):
        await self.abandoned.put((request, dict(context.invocation_metadata()).get("authorization")))
        return chat_pb2.AbandonChatResponse()

    async def Complete(self, request, context):
        await self.completed.put(request)
        return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)


@pytest.mark.parametrize("features", [FEATURES, []])
async def test_a_callback_trainer_gets_a_small_rpc(serve, stack, features):
    server, trainer, listener = await serve(Talk()), SilentTrainer(), grpc.aio.server()
    add_TrainerServiceServicer_to_server(trainer, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    request = trainer_frames.init("r").init
    callback = rollout_pb2.Callback(target=f"127.0.0.1:{port}", credential="secret", state=b"mine", features=features)
    request.callback.CopyFrom(callback)
    async with asyncio.timeout(20):
        await stub.Init(request)
        await trainer.asked.get()
        await stub.Cancel(trainer_frames.cancel("c", rollout_id="r").cancel.request)
        assert (await trainer.completed.get()).outcome.status == outcome_pb2.OUTCOME_STATUS_CANCELLED
        if features:
            told, authorization = await trainer.abandoned.get()
            assert (told.rollout_id, told.attempt, told.sample, told.chat_number) == ("r", 1, "main", 1)
            assert (told.reason, told.state, authorization) == ("CANCELLED", b"mine", "Bearer secret")
    assert trainer.abandoned.empty()
