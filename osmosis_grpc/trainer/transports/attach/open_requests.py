"""Unanswered requests and open subscriptions at one agent server. They are sent again on the next stream.

The events of a subscription come in order and without gaps, even if streams break.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.types import TrajectoryEvent
from osmosis_grpc.protocol.wire.attach import refused
from osmosis_grpc.protocol.wire.event import event_from_wire

Answer = TypeVar("Answer")


class OpenRequests(Generic[Answer]):
    """The unanswered requests of one kind, for example cancels.

    `frame` is the message class of the frame, with an `id` and a `request`. `send` sends a frame if there is a stream.
    `read` converts the response in the answer to the result of ask().
    """

    def __init__(
        self, kind: str, frame: Callable[..., Any], send: Callable[[str, Any], None], read: Callable[[Any], Answer]
    ) -> None:
        self._kind = kind
        self._frame = frame
        self._send = send
        self._read = read
        self._open: dict[str, tuple[Any, asyncio.Future[Answer]]] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._open)

    def ask(self, request: Message) -> "asyncio.Future[Answer]":
        """Send a request, now or on the next stream. Return a future of the answer, which raises the server's error."""
        frame = self._frame(id=str(next(self._ids)), request=request)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[frame.id] = frame, future
        self._send(self._kind, frame)
        return future

    def resend_all(self) -> None:
        """Send every unanswered request on a new stream."""
        for frame, _ in self._open.values():
            self._send(self._kind, frame)

    def close(self, error: Exception) -> None:
        """Fail every open request with this error."""
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()

    def on_reply(self, reply: Any) -> None:
        """Handle the server's answer. Ignore unknown ids."""
        _, future = self._open.pop(reply.id, (None, None))
        if future is None or future.done():
            return
        if reply.WhichOneof("result") == "response":
            future.set_result(self._read(reply.response))
        else:
            future.set_exception(refused(reply.status))


MAX_WAITING = 4096
"""A subscription is paused while this many of its events are unread."""


class Subscription:
    """A subscription to the events of one rollout with numbers above `after`."""

    def __init__(self, rollout_id: str, attempt: int, after: int, tokens: bool) -> None:
        self.subscription_id = ""
        """The id, which each begin() sets anew. Late events with an earlier id are dropped."""
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._after = after
        self._tokens = tokens
        self._waiting: asyncio.Queue[TrajectoryEvent | Exception | None] = asyncio.Queue()
        """The unread events. The last entry is the error that ended the subscription, or None."""
        self._paused = False

    def message(self) -> pb.Subscribe:
        """Return the Subscribe message for the events after the last received one."""
        request = control_pb2.StreamEventsRequest(
            rollout_id=self._rollout_id, attempt=self._attempt, after_event=self._after
        )
        return pb.Subscribe(id=self.subscription_id, request=request, tokens=self._tokens)

    def put(self, response: control_pb2.StreamEventsResponse) -> bool:
        """Add an event. Return False if that pauses the subscription, because its reader is too slow."""
        if self._paused or not response.HasField("event") or response.event.event_number != self._after + 1:
            return True  # a heartbeat, or an event from before a break
        if response.event.WhichOneof("kind") is not None:  # it is None for the kinds of a newer protocol
            self._waiting.put_nowait(event_from_wire(response.event))
        self._after = response.event.event_number
        self._attempt = response.event.attempt
        self._paused = self._waiting.qsize() >= MAX_WAITING
        return not self._paused

    def ended(self, error: Exception | None) -> None:
        """End the subscription, with an error or without."""
        self._waiting.put_nowait(error)

    async def read(self, subscribe: Callable[["Subscription"], None]) -> AsyncGenerator[TrajectoryEvent, None]:
        """Yield events. `subscribe` resumes a paused subscription. Raises the error that ends the subscription."""
        while True:
            if self._paused and self._waiting.empty():
                self._paused = False
                subscribe(self)
            event = await self._waiting.get()
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event


class Subscriptions:
    """The subscriptions at one agent server. `send` sends a frame if there is a stream."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        self._send = send
        self._open: dict[str, Subscription] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        """Return the number of open subscriptions."""
        return len(self._open)

    def begin(self, subscription: Subscription) -> None:
        """Start or resume a subscription."""
        subscription.subscription_id = f"s{next(self._ids)}"
        self._open[subscription.subscription_id] = subscription
        self._send("subscribe", subscription.message())

    def end(self, subscription: Subscription) -> None:
        """End a subscription."""
        if self._open.pop(subscription.subscription_id, None) is not None:
            self._send("unsubscribe", pb.Unsubscribe(id=subscription.subscription_id))

    def resend_all(self) -> None:
        """Send every subscription on a new stream."""
        for subscription in self._open.values():
            self._send("subscribe", subscription.message())

    def close(self, error: Exception) -> None:
        """End every subscription with this error."""
        for subscription in self._open.values():
            subscription.ended(error)
        self._open.clear()

    def on_event(self, frame: pb.EventFrame) -> None:
        """Add an event to its subscription."""
        subscription = self._open.get(frame.id)
        if subscription is None:
            return
        try:
            if not subscription.put(frame.response):
                self.end(subscription)
        except CallError as error:
            self.end(subscription)
            subscription.ended(error)

    def on_unsubscribed(self, message: pb.Unsubscribed) -> None:
        """End a subscription that the server has ended."""
        subscription = self._open.pop(message.id, None)
        if subscription is not None:
            subscription.ended(refused(message.status) if message.HasField("status") else None)
