"""A scripted agent server over the plain stubs, which dials a trainer or is dialled by one.

Nothing here knows osmosis_grpc.server or the frame streams of osmosis_grpc.link.
"""

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import Any

import grpc

from osmosis_grpc._gen.osmosis.rollout.v1 import (
    attach_pb2,
    control_pb2,
    error_pb2,
    event_pb2,
    message_pb2,
    rollout_pb2,
    services_pb2,
    services_pb2_grpc,
    tokens_pb2,
    trainer_pb2,
)
from tests.server.raw_trainer import OPTIONS, RawStream

ACCEPT = "/osmosis.rollout.v1.TrainerService/Accept"
_NAMES = itertools.count(1)


class Dialling(RawStream):
    """A stream that the agent server opened."""

    def _list(self, frames: Any) -> Any:
        return services_pb2.AcceptRequest(frames=frames)


class Dialled(RawStream):
    """A stream that the trainer opened."""

    def _list(self, frames: Any) -> Any:
        return services_pb2.AttachResponse(frames=frames)

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(services_pb2.AttachResponse.FromString(data))


class RawAgentServer:
    """An agent server with a journal of its own, and the streams that it opens at a trainer."""

    def __init__(self, address: str) -> None:
        self.journal_id = f"journal-{next(_NAMES)}"
        self.stream: RawStream
        """The newest."""
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1), *OPTIONS))
        self._answer = services_pb2.AcceptResponse.FromString

    async def __aenter__(self) -> "RawAgentServer":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._channel.close()

    def open(self) -> RawStream:
        """A stream on which nothing was said."""
        self.stream = Dialling(self._channel.stream_stream(ACCEPT, None, self._answer)())
        return self.stream

    async def attach(self, **fields: Any) -> attach_pb2.TrainerHello:
        """A new stream; the trainer's hello on it."""
        self.open()
        await self.send(self.hello(**fields))
        return await self.stream.next("hello")

    def hello(self, **fields: Any) -> attach_pb2.ServerFrame:
        """Who it is."""
        defaults = {"journal_id": self.journal_id}
        return hello(**(defaults | fields))

    async def send(self, *frames: Any) -> None:
        """Send on the newest stream."""
        await self.stream.send(*frames)

    async def accept(self) -> rollout_pb2.InitRequest:
        """Accept the rollout of the next Init."""
        request = await self.stream.next("init")
        await self.send(accepted(request))
        return request

    async def ask(self, request: rollout_pb2.InitRequest, number: int = 1, **fields: Any) -> attach_pb2.ChatReply:
        """Ask a chat; the answer to it."""
        await self.send(chat(request, number, **fields))
        return await self.stream.next("chat_reply")

    async def complete(self, request: rollout_pb2.InitRequest, **fields: Any) -> attach_pb2.CompleteReply:
        """Report the end of a rollout; the answer to it."""
        await self.send(complete(request, **fields))
        return await self.stream.next("complete_reply")


def hello(**fields: Any) -> attach_pb2.ServerFrame:
    """Who an agent server is."""
    defaults = {
        "process_uuid": "raw",
        "version": "raw 1",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_open_rollouts": 10,
        "agent_loops": ["talk"],
    }
    return attach_pb2.ServerFrame(hello=attach_pb2.ServerHello(**(defaults | fields)))


def accepted(request: rollout_pb2.InitRequest, *tools: message_pb2.Tool) -> attach_pb2.ServerFrame:
    """Answers an Init."""
    response = rollout_pb2.InitResponse(
        rollout_id=request.rollout_id, attempt=request.attempt, tools=tools, started=True
    )
    return init_reply(request, response=response)


def init_reply(request: rollout_pb2.InitRequest, **result: Any) -> attach_pb2.ServerFrame:
    """Answers an Init: `response` or `status`."""
    reply = attach_pb2.InitReply(rollout_id=request.rollout_id, attempt=request.attempt, **result)
    return attach_pb2.ServerFrame(init_reply=reply)


def chat(request: rollout_pb2.InitRequest, number: int = 1, **fields: Any) -> attach_pb2.ServerFrame:
    """Asks a chat: the rollout's question in full where nothing else is said."""
    defaults: dict[str, Any] = {
        "rollout_id": request.rollout_id,
        "attempt": request.attempt,
        "sample": "main",
        "number": number,
    }
    if not {"full", "delta"} & fields.keys():
        defaults["full"] = trainer_pb2.FullHistory(messages=request.messages)
    return attach_pb2.ServerFrame(chat=trainer_pb2.ChatRequest(**(defaults | fields)))


def delta(continues: int, *texts: str) -> trainer_pb2.DeltaHistory:
    """A history by reference."""
    messages = [message_pb2.Message(role="user", text=text) for text in texts]
    return trainer_pb2.DeltaHistory(continues=continues, messages=messages)


def complete(request: rollout_pb2.InitRequest, **fields: Any) -> attach_pb2.ServerFrame:
    """Reports the end of a rollout."""
    defaults: dict[str, Any] = {
        "rollout_id": request.rollout_id,
        "attempt": request.attempt,
        "result_id": f"result of {request.rollout_id}",
        "status": rollout_pb2.COMPLETION_STATUS_COMPLETED,
        "finish_reason": "stop",
    }
    completion = rollout_pb2.Completion(**(defaults | fields))
    return attach_pb2.ServerFrame(complete=trainer_pb2.CompleteRequest(completion=completion))


def referring(*chats: int, runs: tuple[int, ...]) -> dict[str, Any]:
    """A completion's fields that refer to these chats of `main`."""
    segment = tokens_pb2.Segment(chats=chats, mask_runs=runs)
    sample = tokens_pb2.Sample(trainable=True, segments=[segment], messages_after=chats[-1])
    return {"samples": {"main": sample}, "messages_after": rollout_pb2.ChatRef(sample="main", number=chats[-1])}


def window(size: int) -> attach_pb2.ServerFrame:
    """How many rollouts may be open."""
    return attach_pb2.ServerFrame(window=attach_pb2.ServerWindow(max_open_rollouts=size))


def status(code: grpc.StatusCode, message: str = "no") -> error_pb2.Status:
    """A status as a value."""
    return error_pb2.Status(code=code.value[0], message=message)


def event(name: str, number: int, rollout_id: str, **kind: Any) -> attach_pb2.ServerFrame:
    """An event of a subscription."""
    told = event_pb2.TrajectoryEvent(rollout_id=rollout_id, attempt=1, number=number, **kind)
    response = control_pb2.StreamEventsResponse(event=told)
    return attach_pb2.ServerFrame(event=attach_pb2.EventFrame(id=name, response=response))


HEARTBEAT = attach_pb2.ServerFrame(heartbeat=attach_pb2.Heartbeat())


class Host(services_pb2_grpc.RolloutServiceServicer):
    """RolloutService for trainers that dial: their streams, to be read by the test."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[RawStream] = asyncio.Queue()

    async def Attach(self, request_iterator: Any, context: Any) -> None:
        stream = Dialled(context)
        await self.streams.put(stream)
        await stream.ended()


@asynccontextmanager
async def host():
    """An agent server that trainers dial."""
    servicer, server = Host(), grpc.aio.server()
    services_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
