"""Subscriptions to events over an attachment. Each subscription reads the log as fast as the stream sends."""

import asyncio
from contextlib import aclosing
from functools import partial

from osmosis_grpc.engine import Engine
from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES
from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol.errors import CallError, Internal, ResourceExhausted
from osmosis_grpc.protocol.wire.attach import refusal, server_frame
from osmosis_grpc.server.requests import follow
from osmosis_grpc.supervise import OnFailure, job

FOLLOW = job("server.follow_events", OnFailure.REPORT)

MAX_SUBSCRIPTIONS = 1024
"""The largest number of subscriptions of one attachment."""


class Subscriptions:
    """The subscriptions of one attachment. Each is a task that follows the log."""

    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def open(self) -> int:
        """The number of subscriptions."""
        return len(self._tasks)

    def begin(self, stream: FrameStream, message: pb.Subscribe) -> None:
        """Begin a subscription. It replaces a subscription with the same id."""
        self.end(message.id)
        if len(self._tasks) >= MAX_SUBSCRIPTIONS:
            error = ResourceExhausted(f"there are {MAX_SUBSCRIPTIONS} subscriptions already")
            stream.answer(server_frame("unsubscribed", pb.Unsubscribed(id=message.id, status=refusal(error))))
            return
        request = control_pb2.StreamEventsRequest()
        request.CopyFrom(message.request)
        task = self._engine.supervisor.start(
            FOLLOW,
            partial(self._follow, stream, message.id, request, message.tokens),
            partial(self._failed, stream, message.id),
        )
        self._tasks[message.id] = task
        key, tasks = message.id, self._tasks
        task.add_done_callback(lambda done: tasks.pop(key) if tasks.get(key) is done else None)

    def end(self, subscription_id: str) -> None:
        """End a subscription. Idempotent."""
        task = self._tasks.pop(subscription_id, None)
        if task is not None:
            task.cancel()

    def end_all(self) -> None:
        """End all subscriptions."""
        for subscription_id in list(self._tasks):
            self.end(subscription_id)

    def _failed(self, stream: FrameStream, subscription_id: str, error: BaseException) -> None:
        status = refusal(Internal("the events cannot be read; the server's log says why"))
        stream.send_event(server_frame("unsubscribed", pb.Unsubscribed(id=subscription_id, status=status)))

    async def _follow(
        self, stream: FrameStream, subscription_id: str, request: control_pb2.StreamEventsRequest, tokens: bool
    ) -> None:
        ended = pb.Unsubscribed(id=subscription_id)
        try:
            async with aclosing(follow(self._engine, self._owner, request, tokens=tokens)) as events:
                async for response in events:
                    await stream.event_space()
                    frame = server_frame("event", pb.EventFrame(id=subscription_id, response=response))
                    if len(frame) > MAX_MESSAGE_BYTES:
                        raise ResourceExhausted(f"event {response.event.event_number} has {len(frame)} bytes, too many")
                    stream.send_event(frame)
        except CallError as error:
            ended.status.CopyFrom(refusal(error))
        await stream.event_space()
        stream.send_event(server_frame("unsubscribed", ended))
