"""Requests of an attachment: Inits with their window, cancels, annotations, and subscriptions to events.

Answers to cancels and annotations wait for the journal. A subscription reads the log as fast as the stream sends.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from osmosis_grpc.engine import Engine, Peer, Record, Tenant
from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES
from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, rollout_pb2
from osmosis_grpc.protocol.errors import CallError, Internal, InvalidArgument, ResourceExhausted
from osmosis_grpc.protocol.types import AbandonReason
from osmosis_grpc.protocol.wire.attach import refusal, server_frame
from osmosis_grpc.protocol.wire.rollout import check_size, init_from_wire
from osmosis_grpc.server.request_answers import annotate, cancel, follow, init_answer
from osmosis_grpc.supervise import OnFailure, job

CANCELLED = job("server.answer_cancel", OnFailure.REPORT, "callback")
ANNOTATE = job("server.annotate", OnFailure.REPORT)

MAX_CANCELLING = 4 * 1024 * 1024
"""While more than this many bytes of replies to cancels wait for the journal, further cancels are refused."""
MAX_ANNOTATING = 64 * 1024 * 1024
"""While more than this many bytes of annotations wait for the journal, further annotations are refused."""


class JournaledRequests:
    """The requests of one attachment whose answers wait for the journal.

    `send` sends a frame of a kind if there is a stream. `fail` is called when an answer could not be made.
    """

    def __init__(
        self, engine: Engine, owner: str, send: Callable[[str, Any], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._send = send
        self._fail = fail
        self._cancelling = 0
        """The bytes of the replies to cancels that wait for the journal."""
        self._annotating = 0
        """The bytes of the annotations that wait for the journal."""

    def on_cancel(self, ask: pb.CancelFrame) -> None:
        """Cancel rollouts, and answer after the commit."""
        reply = pb.CancelReply(id=ask.id)
        try:
            _check(self._cancelling, MAX_CANCELLING, "replies to earlier cancels")
            reply.response.CopyFrom(cancel(self._engine, self._owner, ask.request))
        except CallError as error:
            self._answer_cancel(reply, error)
            return
        size = reply.ByteSize()
        self._cancelling += size

        def committed(error: CallError | None) -> None:
            self._cancelling -= size
            self._engine.supervisor.call(CANCELLED, self._answer_cancel, reply, error, report=self._fail)

        self._engine.log.barrier(committed)

    def _answer_cancel(self, reply: pb.CancelReply, error: CallError | None) -> None:
        if error is not None:
            reply.status.CopyFrom(refusal(error))
        self._send("cancel_reply", reply)

    def on_annotate(self, ask: pb.AnnotateFrame) -> None:
        """Store an annotation, and answer after the commit."""
        reply = pb.AnnotateReply(id=ask.id)
        try:
            _check(self._annotating, MAX_ANNOTATING, "earlier annotations")
        except CallError as error:
            reply.status.CopyFrom(refusal(error))
            self._send("annotate_reply", reply)
            return
        size = ask.ByteSize()
        self._annotating += size

        async def answer() -> None:
            try:
                reply.response.CopyFrom(await annotate(self._engine, self._owner, ask.request))
            except CallError as error:
                reply.status.CopyFrom(refusal(error))
            self._send("annotate_reply", reply)

        def done(_: Any) -> None:
            self._annotating -= size

        self._engine.supervisor.start(ANNOTATE, answer, self._fail).add_done_callback(done)


def _check(waiting: int, limit: int, what: str) -> None:
    if waiting > limit:
        raise ResourceExhausted(f"{waiting} bytes of {what} wait for the journal", retry_after=1.0)


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


ACCEPTED = job("server.answer_init", OnFailure.REPORT, "callback")

MAX_EQUAL_INITS = 64
"""At most this many copies of one Init (the same id, attempt and spec) wait for its answer."""


class AttachedInits:
    """Accepts the Inits of one attachment within its window, the number of rollouts that it may have open.

    Args:
        engine: Runs the rollouts.
        owner: The owner of the rollouts.
        peer: The attachment, which receives the calls of the rollouts. It has a tenant.
        max_metadata: The most bytes of a rollout's metadata.
        send: Sends a frame of a kind if there is a stream. With `answer`, its bytes count against the stream's limit.
        fail: Called when an answer could not be made.
        resend: Sends the outcome of a settled rollout again.
    """

    def __init__(
        self,
        engine: Engine,
        owner: str,
        peer: Peer,
        max_metadata: int,
        *,
        send: Callable[..., None],
        fail: Callable[[BaseException], None],
        resend: Callable[[Record], None],
    ) -> None:
        assert peer.tenant is not None
        self._engine = engine
        self._owner = owner
        self._peer = peer
        self._tenant: Tenant = peer.tenant
        self._max_metadata = max_metadata
        self._send = send
        self._failed = fail
        self._resend = resend
        self._window = 0
        self._largest = 0
        """The largest window that the trainer may still assume. An Init beyond it ends the stream."""
        self._accepting: Counter[Record] = Counter()
        """For each rollout that is being accepted, the number of Inits that wait for the answer."""

    def begin(self, granted: int) -> None:
        """Set the window of a new stream.

        Rollouts of earlier streams count too, though the trainer possibly does not know all of them. If an Init beyond
        the window ended the stream for that reason, the trainer would resend it on each new stream, forever.
        """
        self._window = granted
        self._largest = granted + self._tenant.open

    def grant(self, window: int) -> None:
        """Set the number of rollouts that this trainer may have open, and send it to the trainer."""
        if window != self._window:
            self._window = window
            self._largest = max(window, self._largest)
            self._send("window", pb.ServerWindow(max_open_rollouts=window), answer=False)

    def on_open_rollouts(self, message: pb.OpenRollouts) -> None:
        """Take over the rollouts that the trainer waits for, and answer with those that the server does not know.

        They may come from another attachment of the trainer. If one is settled, for example expired, its outcome is
        sent again, because a trainer that waits does not have it.
        """
        take_over, owner = self._engine.acceptance.take_over, self._owner
        found = [
            (ref, take_over(ref.rollout_id, ref.attempt, owner=owner, peer=self._peer)) for ref in message.rollouts
        ]
        unknown = [ref for ref, record in found if record is None]
        self._send("unknown_rollouts", pb.UnknownRollouts(rollouts=unknown))
        for ref, record in found:
            if self._engine.rollouts.superseded(owner, ref.rollout_id, ref.attempt):
                self._peer.abandon((ref.rollout_id, ref.attempt, "", 0), AbandonReason.SUPERSEDED)
            elif record is not None:
                self._resend(record)

    def on_init(self, message: rollout_pb2.InitRequest) -> None:
        rollout_id, attempt = message.rollout_id, message.attempt or 1
        full = self._tenant.open >= self._window and not self._engine.shutdown.draining
        beyond = False
        try:
            beyond = full and not self._engine.rollouts.holds(self._owner, rollout_id, attempt)
            if beyond:
                self._engine.acceptance.rejected[ResourceExhausted.code] += 1
                raise ResourceExhausted(
                    f"{self._tenant.open} rollouts are open, and this attachment may have {self._window}",
                    retry_after=1.0,
                    reason="WINDOW_EXCEEDED",
                )
            check_size(message, self._max_metadata)
            if message.HasField("callback"):
                raise InvalidArgument("callback", "must be unset, because an attachment's stream carries all calls")
            record, started = self._engine.acceptance.begin(init_from_wire(message), owner=self._owner, peer=self._peer)
            if self._accepting[record] >= MAX_EQUAL_INITS and not record.accepted.done():
                raise ResourceExhausted(
                    f"{MAX_EQUAL_INITS} equal Inits of this rollout already wait for their answer", retry_after=1.0
                )
        except CallError as error:
            if beyond and self._tenant.open >= self._largest:
                raise
            self._refuse_init(rollout_id, attempt, error)
            return
        if record.accepted.done():
            self._answer_init(record, started)
            return
        self._accepting[record] += 1
        call, failed = self._engine.supervisor.call, self._failed
        record.accepted.add_done_callback(lambda _: call(ACCEPTED, self._answer_init, record, started, report=failed))

    def _answer_init(self, record: Record, started: bool) -> None:
        self._accepting.pop(record, None)
        error = None if record.accepted.cancelled() else record.accepted.exception()
        if isinstance(error, CallError):
            self._refuse_init(record.rollout_id, record.attempt, error)
            return
        response = init_answer(record, started)
        reply = pb.InitReply(rollout_id=record.rollout_id, attempt=record.attempt, response=response)
        self._send("init_reply", reply, answer=not started)
        self._resend(record)

    def _refuse_init(self, rollout_id: str, attempt: int, error: CallError) -> None:
        self._send("init_reply", pb.InitReply(rollout_id=rollout_id, attempt=attempt, status=refusal(error)))
