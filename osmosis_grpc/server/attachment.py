"""The server's end of a trainer's attachment.

The theory
----------
An attachment represents a trainer rather than a connection. When a stream breaks, the trainer opens the next one, and
the attachment continues where the last one ended. To the engine it is the *peer* of the trainer's rollouts: the engine
calls chat() and complete() and waits for the answers, whether there is a stream or not.

The attachment keeps everything that has no answer yet:

- `_waiting`: chats that were not sent on the present stream, in order.
- `_open`: chats that were sent on it, at most `_chat_window`. A chat is in `_waiting` or `_open` until a reply, an
  abandon or a failed encoding removes it.
- `_results`: outcomes without a receipt. Their number is not limited.

A new stream (take()) moves `_open` back to the front of `_waiting`, and sends everything again. This is safe because
chats have names and outcomes have result ids, by which the trainer recognizes a second copy and repeats its answer.
So _tick() can also resend them on a live stream, in case a proxy has lost a frame. A chat whose future is done is
skipped: its rollout has ended, or has moved to another peer. A reply to a chat that is not open is dropped as late if
the chat was ever sent; otherwise it breaks the protocol and ends the stream.

Answers to the trainer's own requests are not kept. The trainer resends an unanswered request on the next stream, and
the engine then finds the rollout that it has already started. So an error while making an answer ends the stream.

This file holds this state and handlers that pass a frame on. Nothing here awaits, so the stream cannot change while a
handler runs. The order and the size of frames are checked in protocol/stream, and rollouts are run by the engine.
Inits with their window, requests that wait for the journal, and subscriptions are in attached_requests.py.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from osmosis_grpc.engine import Engine, Peer, Record, Tenant
from osmosis_grpc.engine.find_earlier_run import run_name
from osmosis_grpc.engine.record import ChatKey
from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2
from osmosis_grpc.protocol.errors import Aborted, Internal, InvalidArgument, ReplyUnreadable, Unavailable, UnknownChat
from osmosis_grpc.protocol.types import AbandonReason, ChatRequest, ChatResponse, Receipt, RolloutOutcome
from osmosis_grpc.protocol.wire.attach import chat_frame, complete_frame, refused, server_frame, unknown_kind, window_of
from osmosis_grpc.protocol.wire.chat import RECEIPTS, chat_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.control import ABANDON_CHAT, BLOBS, features_from_wire
from osmosis_grpc.protocol.wire.rollout import wants_delta
from osmosis_grpc.server.attached_requests import AttachedInits, JournaledRequests, Subscriptions
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)

ASK_AGAIN = job("server.ask_again", OnFailure.RESTART)

RESEND_INTERVAL = 5.0

ResultKey = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class _Chat:
    """An unanswered chat."""

    key: ChatKey
    request: ChatRequest
    future: "asyncio.Future[ChatResponse]"
    delta: bool
    sent: float = 0.0


@dataclass(slots=True, eq=False)
class _Result:
    """An unanswered outcome."""

    outcome: RolloutOutcome
    frame: bytes
    future: "asyncio.Future[Receipt]"
    sent: float


class Attachment:
    """One trainer's attachment. The trainer's rollouts belong to `owner`."""

    def __init__(self, attachment_id: str, owner: str, engine: Engine, max_metadata_bytes: int) -> None:
        self.attachment_id = attachment_id
        self.owner = owner
        self.tenant = Tenant(away_since=engine.context.system.time())
        self.address, self.version, self.since = "", "", 0.0
        """The trainer's address and version on its newest stream, and when it began, in Unix seconds."""
        self.stream_number = 0
        """The number in the trainer's hello on its newest stream; 0 if it is unknown."""
        self.dropped = 0
        """The number of chat replies that were dropped because they were late."""
        self._engine = engine
        self.peer = Peer(
            self.chat,
            self.complete,
            ("attachment", attachment_id),
            has_tokens=True,
            accepts_references=True,
            tenant=self.tenant,
            attachment_id=attachment_id,
            trainer_run=run_name(attachment_id),
            destination_key=attachment_id,
            abandon=self.abandon,
        )
        self._loop = asyncio.get_running_loop()
        self.subscriptions = Subscriptions(engine, owner)
        self._unknown_frames = Throttled(log, engine.context.system.monotonic)
        self._waiting: deque[_Chat] = deque()
        self._open: dict[ChatKey, _Chat] = {}
        self._results: dict[ResultKey, _Result] = {}
        self._resent: set[ResultKey] = set()  # on the present stream
        self._stream: FrameStream | None = None
        self._features: frozenset[str] = frozenset()
        self.done = False
        """Whether the trainer has said goodbye on its newest stream."""
        self._delta = True
        self._chat_window = 0
        self._ticking: asyncio.Task[None] | None = None
        waiting = JournaledRequests(engine, owner, self._send, self._failed)
        self._inits = AttachedInits(
            engine,
            owner,
            self.peer,
            max_metadata_bytes,
            send=self._send,
            fail=self._failed,
            resend=self._resend_delivered,
        )
        self.grant = self._inits.grant
        self.handlers: dict[str, Callable[[Any], None]] = {
            "open_rollouts": self._inits.on_open_rollouts,
            "init": self._inits.on_init,
            "cancel": waiting.on_cancel,
            "chat_reply": self._on_chat_reply,
            "complete_reply": self._on_complete_reply,
            "annotate": waiting.on_annotate,
            "subscribe": self._on_subscribe,
            "unsubscribe": lambda message: self.subscriptions.end(message.id),
            "window": self._on_window,
            "goodbye": self._on_goodbye,
            "heartbeat": lambda _: None,
            "unknown_frame": self._on_unknown_frame,
            "": lambda frame: self._send("unknown_frame", unknown_kind(frame)),
        }
        """The handler of each kind of frame."""

    @property
    def attached(self) -> bool:
        """Whether the trainer has a stream now."""
        return self._stream is not None

    def has_newer_stream_than(self, stream_number: int) -> bool:
        """Return whether the trainer opened its present stream after the one with this number, whose hello is late."""
        return self._stream is not None and 0 < stream_number < self.stream_number

    @property
    def traffic(self) -> tuple[int, int]:
        """The bytes that the server has received and sent on the present stream; 0 without a stream."""
        return (self._stream.received, self._stream.sent) if self._stream is not None else (0, 0)

    @property
    def needed(self) -> bool:
        """Whether the trainer has a stream, an unfinished rollout, or an undelivered outcome."""
        return self._stream is not None or bool(self.tenant.open or self.tenant.undelivered or self._results)

    # Calls of the engine.

    def chat(self, request: ChatRequest, /) -> "asyncio.Future[ChatResponse]":
        """Send a chat as soon as the trainer's window allows it. Implements ChatModel.

        Until the chat is answered, it is sent again on each new stream.
        """
        key = (request.rollout_id, request.attempt, request.sample, request.chat_number)
        future: asyncio.Future[ChatResponse] = self._loop.create_future()
        chat = self._open.get(key)
        if chat is not None:  # a retry: the chat was already sent, and its reply goes to this call
            chat.future = future
        else:
            chat = _Chat(key, request, future, self._delta)
            if self._stream is not None and not self._waiting and len(self._open) < self._chat_window:
                self._send_chat(self._stream, chat)
            else:
                self._waiting.append(chat)
        return future

    def abandon(self, chat: ChatKey, reason: AbandonReason, /) -> None:
        """Close open chats, and tell the trainer that their replies are no longer needed."""
        rollout_id, attempt, sample, number = chat
        if ABANDON_CHAT not in self._features or (number and chat not in self._open):
            return
        if number:
            del self._open[chat]
        message = chat_pb2.AbandonChatRequest(
            rollout_id=rollout_id, attempt=attempt, sample=sample, chat_number=number, reason=reason
        )
        self._send("abandon_chat", message, answer=False)
        self._ask()

    def complete(self, outcome: RolloutOutcome, /, *, again: bool = False) -> "asyncio.Future[Receipt]":
        """Send an outcome at once. Implements ResultSink.

        Until the outcome is answered, it is sent again on each new stream. Set `again` if this stream has carried it
        before: the copy then answers a frame of the trainer, and its bytes count against the limit for answers.
        """
        frame = complete_frame(outcome, blobs=BLOBS in self._features)
        key = (outcome.rollout_id, outcome.attempt, outcome.result_id)
        future: asyncio.Future[Receipt] = self._loop.create_future()
        result = self._results[key] = _Result(outcome, frame, future, self._loop.time())
        future.add_done_callback(lambda _: self._results.pop(key) if self._results.get(key) is result else None)
        if self._stream is not None:
            (self._stream.answer if again else self._stream.send)(frame)
        return future

    # The stream.

    def take(self, stream: FrameStream, hello: pb.TrainerHello, *, granted: int) -> None:
        """Switch to a new stream after both hellos, and send the unanswered chats and outcomes again on it.

        An older stream ends with ABORTED. `granted` is the number of open rollouts that the server's hello allowed.
        """
        if self._stream is not None:
            replaced = "a newer stream with the same attachment id has replaced this stream"
            self._stream.end(Aborted(replaced, reason="ATTACHMENT_REPLACED"))
            self.leave(self._stream)
        self._stream, self.stream_number = stream, hello.stream_number
        self._delta = wants_delta(hello.history, "hello.history", default=True)
        had_blobs = BLOBS in self._features
        self._features = features_from_wire(hello.features)
        self.done = self.tenant.lost = False
        self.tenant.away_since = None
        self._resent.clear()
        self._chat_window = window_of(hello)
        self._inits.begin(granted)
        blobs = BLOBS in self._features
        for result in self._results.values():
            if blobs is not had_blobs:
                result.frame = complete_frame(result.outcome, blobs=blobs)
            stream.send(result.frame)
            result.sent = self._loop.time()
        unanswered = [chat for chat in self._open.values() if not chat.future.done()]
        self._waiting.extendleft(reversed(unanswered))
        self._open.clear()
        for chat in self._waiting:
            chat.delta = chat.delta and self._delta
        self._ask()
        self._ticking = self._engine.supervisor.every(ASK_AGAIN, RESEND_INTERVAL, partial(self._tick, stream))

    def leave(self, stream: FrameStream) -> None:
        """Note the end of a stream. Do nothing if another stream has replaced it."""
        if self._stream is stream:
            self._stream = None
            self.tenant.away_since = self._engine.context.system.time()
            if self._ticking is not None:
                self._ticking.cancel()
            self.subscriptions.end_all()

    def notify_draining(self) -> None:
        """Tell the trainer that the server drains."""
        self._send("draining", pb.Draining(), answer=False)

    def say_goodbye(self, kept: Sequence[Record]) -> None:
        """Tell the trainer that the server leaves, and end the stream.

        `kept` has the rollouts that stay in the journal for the next process.
        """
        if self._stream is not None:
            refs = [pb.RolloutRef(rollout_id=record.rollout_id, attempt=record.attempt) for record in kept]
            self._stream.send(server_frame("goodbye", pb.Goodbye(kept=refs)))
            restarting = self._engine.shutdown.restarting
            self._stream.end(
                Unavailable("the server restarts", reason="RESTARTING")
                if restarting
                else Unavailable("the server has shut down")
            )

    def _tick(self, stream: FrameStream) -> None:
        """Resend the chats and outcomes that have had no answer for more than `chat_silence` seconds.

        A proxy can lose a frame without breaking the stream. The answer would then never come.
        """
        now = self._loop.time()
        before = now - self._engine.config.chat_silence
        for chat in list(self._open.values()):
            if chat.sent < before and not chat.future.done():
                self._send_chat(stream, chat)
        for result in self._results.values():
            if result.sent < before:
                stream.send(result.frame)
                result.sent = now

    def _ask(self) -> None:
        stream = self._stream
        while self._waiting and stream is not None and len(self._open) < self._chat_window:
            chat = self._waiting[0]
            if not chat.future.done():
                self._send_chat(stream, chat)
            self._waiting.popleft()

    def _send_chat(self, stream: FrameStream, chat: _Chat) -> None:
        try:
            blobs = BLOBS in self._features
            frame = chat_frame(chat_bytes(chat.request, delta=chat.delta, all_tools=False, blobs=blobs))
            if len(frame) > MAX_MESSAGE_BYTES:
                raise InvalidArgument("messages", f"the chat has {len(frame)} bytes, more than {MAX_MESSAGE_BYTES}")
        except Exception as error:  # the error must not stop the chats after this one
            self._open.pop(chat.key, None)
            chat.future.set_exception(error)
            return
        chat.sent = self._loop.time()
        self._open[chat.key] = chat
        stream.send(frame)

    # Frames of the trainer.

    def _send(self, kind: str, message: Any, *, answer: bool = True) -> None:
        """Send a frame if there is a stream.

        With `answer`, the frame answers one of the trainer, and its bytes count against the limit for unread answers.
        """
        if self._stream is not None:
            (self._stream.answer if answer else self._stream.send)(server_frame(kind, message))

    def _resend_delivered(self, record: Record) -> None:
        """Send the outcome of a settled rollout again, in case the trainer does not have it."""
        outcome = record.delivery.outcome
        if outcome is None or record.delivery.undelivered:
            return
        key = (outcome.rollout_id, outcome.attempt, outcome.result_id)
        if key not in self._results:  # otherwise it was already sent again, and waits for its answer
            resent = self.complete(outcome, again=key in self._resent)
            resent.add_done_callback(lambda call: call.cancelled() or call.exception())
            self._resent.add(key)

    def _failed(self, error: BaseException) -> None:
        """End the stream after an answer could not be sent, so that the trainer repeats its request on the next one."""
        if self._stream is not None:
            self._stream.end(Internal("an answer could not be sent; the server's log says why"))

    def _on_chat_reply(self, reply: pb.ChatReply) -> None:
        key = (reply.rollout_id, reply.attempt, reply.sample, reply.chat_number)
        chat = self._open.get(key)
        if chat is None and not self._engine.rollouts.was_asked(self.owner, *key):
            raise InvalidArgument(
                "chat_reply", f"chat {reply.chat_number} of rollout {reply.rollout_id[:256]} was never asked"
            )
        if chat is None or chat.future.done():
            self.dropped += 1
        elif reply.WhichOneof("result") == "response":
            try:
                size = reply.response.ByteSize()
                if size > MAX_REPLY_BYTES:
                    raise InvalidArgument("response", f"has {size} bytes, more than {MAX_REPLY_BYTES}")
                chat.future.set_result(reply_from_wire(reply.response, keep=self._engine.journal.durable))
            except InvalidArgument as error:
                chat.future.set_exception(ReplyUnreadable(f"the trainer's reply cannot be read: {error}"))
        else:
            refusal_error = refused(reply.status)
            if chat.delta and chat.request.parent_chat and isinstance(refusal_error, UnknownChat):
                chat.delta = False
                self._waiting.appendleft(chat)
            else:
                chat.future.set_exception(refusal_error)
        self._open.pop(key, None)
        if self._waiting:
            self._ask()

    def _on_complete_reply(self, reply: pb.CompleteReply) -> None:
        result = self._results.get((reply.rollout_id, reply.attempt, reply.result_id))
        if result is None or result.future.done():
            return
        if reply.WhichOneof("result") == "status":
            result.future.set_exception(refused(reply.status))
        elif (receipt := RECEIPTS.names.get(reply.receipt)) is None:
            result.future.set_exception(Unavailable("the trainer's answer has no receipt"))
        else:
            result.future.set_result(receipt)

    def _on_subscribe(self, message: pb.Subscribe) -> None:
        if self._stream is not None:
            self.subscriptions.begin(self._stream, message)

    def _on_goodbye(self, message: pb.Goodbye) -> None:
        """End the stream and, at once, the trainer's unfinished rollouts: the trainer is done."""
        self.done = True
        if self._stream is not None:
            self._stream.end(None)

    def _on_unknown_frame(self, message: pb.UnknownFrame) -> None:
        self._unknown_frames.warn(f"the trainer does not know the frame with the number {message.frame_number}")

    def _on_window(self, message: pb.TrainerWindow) -> None:
        self._chat_window = message.max_open_chats
        self._ask()
