"""A callback trainer may ask for outcomes by reference, instead of receiving back every token that it sent."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    chat_pb2,
    control_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    tokens_pb2,
)
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import (
    RolloutServiceServicer,
    RolloutServiceStub,
    TrainerServiceServicer,
    TrainerServiceStub,
    add_RolloutServiceServicer_to_server,
    add_TrainerServiceServicer_to_server,
)
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw import server_frames
from osmosis_grpc.testing.raw.trainer_frames import init
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.server.attached import Talk
from tests.trainer.conftest import USER, reply
from tests.trainer.deployment import begun, within


class RawTrainer(TrainerServiceServicer):
    """Answers chats with tokens, and keeps the outcome as it came."""

    def __init__(self):
        self.outcome = asyncio.get_running_loop().create_future()
        self.known = {0: []}

    async def Chat(self, request, context):
        self.known[request.chat_number] = prompt = [*self.known[request.full.parent_chat], request.chat_number]
        sampled = range(1000 * request.chat_number, 1000 * request.chat_number + 200)
        self.known[request.chat_number] = [*prompt, *sampled]
        return chat_pb2.ChatResponse(
            message=message_pb2.Message(role="assistant", text="fine"),
            tokens=tokens_pb2.TokenBlock(ids=sampled, logprobs=[-0.5] * 200),
            prompt=tokens_pb2.TokenBlock(ids=prompt),
        )

    async def Complete(self, request, context):
        if not self.outcome.done():
            self.outcome.set_result(request.outcome)
        return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)


@pytest.mark.parametrize("by_reference", [False, True])
async def test_an_outcome_by_reference_has_no_tokens_and_no_known_messages(serve, stack, by_reference):
    server, trainer, listener = await serve(Talk()), RawTrainer(), grpc.aio.server()
    add_TrainerServiceServicer_to_server(trainer, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    request = init("r", turns=3).init
    callback = rollout_pb2.Callback(target=f"127.0.0.1:{port}", outcome_by_reference=by_reference)
    request.callback.CopyFrom(callback)
    await stub.Init(request)
    outcome = await within(trainer.outcome)
    (sample,) = outcome.samples
    (segment,) = sample.segments
    assert (sample.trainable, list(segment.chats), sum(segment.mask_runs[1::2])) == (True, [1, 2, 3], 600)
    if by_reference:
        assert [len(each) for each in (segment.ids, segment.logprobs, segment.versions)] == [0, 0, 0]
        assert (sample.prefix_chat, len(sample.messages)) == (3, 1)
        assert outcome.ByteSize() < 1000
    else:
        assert len(segment.ids) == sum(segment.mask_runs)
        assert (sample.prefix_chat, len(sample.messages)) == (0, 7)


class OldServer(RolloutServiceServicer):
    """An agent server with these features. It reports the outcome of each rollout at once."""

    def __init__(self, features):
        self.features, self.callbacks = features, []

    async def GetServerInfo(self, request, context):
        return control_pb2.GetServerInfoResponse(
            protocol_min=1,
            protocol_max=1,
            process_id="raw",
            journal_id="raw",
            agent_loops=[control_pb2.AgentLoopInfo(name="talk")],
            capacity=control_pb2.Capacity(max_concurrent=10),
            features=self.features,
        )

    async def Init(self, request, context):
        self.callbacks.append(request.callback)
        self.request = request
        self.reported = asyncio.ensure_future(self._report(request))
        return rollout_pb2.InitResponse(rollout_id=request.rollout_id, attempt=request.attempt, created=True)

    async def _report(self, request):
        async with grpc.aio.insecure_channel(request.callback.target) as channel:
            headers = (("authorization", f"Bearer {request.callback.credential}"),)
            await TrainerServiceStub(channel).Complete(server_frames.complete(request).complete, metadata=headers)


@pytest.mark.parametrize("features", [[], ["outcome_by_reference"], ["another", "outcome_by_reference"]])
async def test_a_trainer_asks_only_a_server_that_lists_the_feature(stack, features):
    agents, listener = OldServer(features), grpc.aio.server()
    add_RolloutServiceServicer_to_server(agents, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    config = TrainerConfig(longest_pause=0.2)
    async with Trainer([f"127.0.0.1:{port}"], reply, transport="callback", config=config) as trainer:
        ended = begun(trainer.rollout(rollout_id="r", messages=[USER]))
        assert (await ended).status is OutcomeStatus.COMPLETED
    (callback,) = agents.callbacks
    assert callback.outcome_by_reference is ("outcome_by_reference" in features)
    assert {"abandon_chat", "outcome_by_reference"} <= set(callback.features)
