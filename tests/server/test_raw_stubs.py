"""A client that uses nothing but the generated stubs can do everything: the contract needs no library."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, control_pb2, message_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import (
    RolloutServiceStub,
    TrainerServiceServicer,
    add_TrainerServiceServicer_to_server,
)

ASSISTANT = "assistant"


class RawTrainer(TrainerServiceServicer):
    """Answers the first chat with a tool call and the second with text."""

    def __init__(self):
        self.chats = []
        self.metadata = []
        self.completed = asyncio.Queue()
        self.hold = asyncio.Event()
        self.hold.set()

    async def Chat(self, request, context):
        self.chats.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        await self.hold.wait()
        if request.chat_number == 1:
            function = message_pb2.FunctionCall(name="add", arguments='{"a": 2, "b": 3}')
            call = message_pb2.ToolCall(id="c1", type="function", function=function)
            reply = message_pb2.Message(role=ASSISTANT, null_content=message_pb2.NullContent(), tool_calls=[call])
            return chat_pb2.ChatResponse(message=reply, finish_reason="tool_calls")
        reply = message_pb2.Message(role=ASSISTANT, text="#### 5")
        response = chat_pb2.ChatResponse(message=reply, finish_reason="stop")
        response.tokens.ids.extend([7, 8])
        response.tokens.logprobs.extend([-0.5, -0.25])
        response.prompt.ids.extend([1, 2, 3])
        return response

    async def Complete(self, request, context):
        await self.completed.put(request)
        return outcome_pb2.CompleteResponse(receipt=outcome_pb2.RECEIPT_RECORDED)


@asynccontextmanager
async def raw_trainer():
    trainer, server = RawTrainer(), grpc.aio.server()
    add_TrainerServiceServicer_to_server(trainer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield trainer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def init_request(rollout_id, target, **fields):
    question = message_pb2.Message(role="user", text="What is 2 + 3?")
    callback = rollout_pb2.Callback(target=target, credential="s3cret", state=b"\x00state")
    spec = rollout_pb2.RolloutSpec(messages=[question], label="5")
    return rollout_pb2.InitRequest(rollout_id=rollout_id, spec=spec, callback=callback, **fields)


async def numbers(stream):
    return [response.event.event_number async for response in stream if response.HasField("event")]


async def test_init_chat_complete_and_every_way_to_read_events(serve):
    server = await serve()
    async with raw_trainer() as (trainer, target), grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        trainer.hold.clear()
        trace = rollout_pb2.TraceContext(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        answer = await stub.Init(init_request("raw-1", target, trace_context=trace))
        assert (answer.rollout_id, answer.attempt, answer.created) == ("raw-1", 1, True)
        assert [tool.function.name for tool in answer.tools] == ["add", "subtract", "multiply", "divide"]

        live = asyncio.ensure_future(numbers(stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="raw-1"))))
        await asyncio.sleep(0.05)  # the events are followed live
        assert not live.done(), "the stream is live while the chat is open"
        received = (await stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="raw-1"))).rollout
        assert received.state == rollout_pb2.ROLLOUT_STATE_RUNNING
        assert received.activity.description == "chat main 1"
        trainer.hold.set()

        request = await asyncio.wait_for(trainer.completed.get(), 10)
        outcome = request.outcome
        assert request.state == b"\x00state"
        assert outcome.status == outcome_pb2.OUTCOME_STATUS_COMPLETED
        assert outcome.reward == 1.0
        assert outcome.finish_reason == "stop"
        (sample,) = outcome.samples
        assert [m.role for m in sample.messages] == ["user", ASSISTANT, "tool", ASSISTANT]
        assert outcome.metrics.num_llm_calls == 2
        assert outcome.metrics.num_tool_calls == 1
        assert (sample.name, sample.trainable) == ("main", False)
        assert sample.not_trainable_reason == "chat 1: the reply came without token ids"

        first, second = trainer.chats
        assert [m.role for m in second.full.messages] == ["user", ASSISTANT, "tool"]
        assert (first.chat_number, second.chat_number, first.sample, first.state) == (1, 2, "main", b"\x00state")
        assert trainer.metadata[0]["authorization"] == "Bearer s3cret"
        assert trainer.metadata[0]["traceparent"] == trace.traceparent

        everything = await asyncio.wait_for(live, 10)
        assert everything == list(range(1, len(everything) + 1))
        stream = control_pb2.StreamEventsRequest(rollout_id="raw-1", after_event=3)
        assert await numbers(stub.StreamEvents(stream)) == everything[3:]


async def test_all_rollouts_by_cursor(serve):
    server = await serve()
    async with raw_trainer() as (trainer, target), grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        for rollout_id in ("a", "b"):
            await stub.Init(init_request(rollout_id, target))
            await asyncio.wait_for(trainer.completed.get(), 10)
        seen = await take(stub.StreamEvents(control_pb2.StreamEventsRequest()), "b")
        assert {rollout_id for rollout_id, _, _ in seen} == {"a", "b"}
        middle = next(i for i, (rollout_id, number, _) in enumerate(seen) if (rollout_id, number) == ("a", 5))
        cursor = seen[middle][2]
        rest = await take(stub.StreamEvents(control_pb2.StreamEventsRequest(cursor=cursor)), "b")
        assert rest == seen[middle + 1 :]


async def take(stream, last_rollout):
    """Events of a stream without end, up to the last one of a rollout: (id, number, cursor)."""
    seen = []
    async for response in stream:
        if response.HasField("event"):
            seen.append((response.event.rollout_id, response.event.event_number, response.cursor))
            if response.event.rollout_id == last_rollout and response.event.WhichOneof("kind") == "delivered":
                stream.cancel()
                return seen
    raise AssertionError("the stream ended")
