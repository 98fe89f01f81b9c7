"""The server's end of a trainer's attachment.

A trainer can open several streams, one after the other, and all of them belong to one attachment. The attachment is the
peer of the trainer's rollouts, so the engine sends their chats and outcomes to the attachment. The attachment keeps
each chat and each outcome until the trainer answers it. The attachment sends unanswered chats and outcomes again
on the next stream. It passes the trainer's frames to the engine.
"""

import asyncio
import logging
from collections import Counter, deque
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
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, rollout_pb2
from osmosis_grpc.protocol.errors import (
    Aborted,
    CallError,
    Internal,
    InvalidArgument,
    ReplyUnreadable,
    ResourceExhausted,
    Unavailable,
    UnknownChat,
)
from osmosis_grpc.protocol.types import AbandonReason, ChatRequest, ChatResponse, Receipt, RolloutOutcome
from osmosis_grpc.protocol.wire.attach import (
    chat_frame,
    complete_frame,
    refusal,
    refused,
    server_frame,
    unknown_kind,
    window_of,
)
from osmosis_grpc.protocol.wire.chat import RECEIPTS, chat_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.features import ABANDON_CHAT, BLOBS, features_from_wire
from osmosis_grpc.protocol.wire.rollout import check_size, init_from_wire, wants_delta
from osmosis_grpc.server.event_subscriptions import Subscriptions
from osmosis_grpc.server.journaled_requests import JournaledRequests
from osmosis_grpc.server.requests import init_answer
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)

ASK_AGAIN = job("server.ask_again", OnFailure.RESTART)
ACCEPTED = job("server.answer_init", OnFailure.REPORT, "callback")

RESEND_INTERVAL = 5.0
MAX_EQUAL_INITS = 64
"""At most this many equal Inits wait for the same answer. Equal Inits have the same id, attempt and spec."""

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
        self.address, self.version = "", ""
        """The address and the version of the trainer on its newest stream."""
        self.since = 0.0
        """When this stream began, in Unix seconds."""
        self.dropped = 0
        """The number of chat replies that were dropped, because they came too late."""
        self._engine = engine
        self._max_metadata = max_metadata_bytes
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
        self._resent: set[ResultKey] = set()
        """The delivered outcomes that were sent again on the present stream."""
        self._accepting: Counter[Record] = Counter()
        """For each rollout that is being accepted, the number of Inits that wait for the answer."""
        self._stream: FrameStream | None = None
        self._features: frozenset[str] = frozenset()
        self.done = False
        """Whether the trainer has said goodbye on its newest stream."""
        self._delta = True
        self._chat_window = 0
        self._rollout_window = 0
        self._largest_rollout_window = 0
        self._ticking: asyncio.Task[None] | None = None
        waiting = JournaledRequests(engine, owner, self._send, self._failed)
        self.handlers: dict[str, Callable[[Any], None]] = {
            "open_rollouts": self._on_open_rollouts,
            "init": self._on_init,
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

    @property
    def received(self) -> int:
        """The bytes that the server has received on the present stream; 0 without a stream."""
        return self._stream.received if self._stream is not None else 0

    @property
    def sent(self) -> int:
        """The bytes that the server has sent on the present stream; 0 without a stream."""
        return self._stream.sent if self._stream is not None else 0

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
        """Tell the trainer that replies to open chats are no longer wanted. An abandoned chat is no longer open."""
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

        Until the outcome is answered, it is sent again on each new stream. An equal Init of the trainer makes the
        server resend a delivered outcome. `again` is True if the present stream has already had such a resend of
        this outcome. With `again`, the frame counts as an answer to the trainer's frame. The stream limits the
        bytes of such answers.
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
        """Use a new stream after both hellos. Send the unanswered chats and outcomes again on the new stream.

        If there is an older stream, it ends with ABORTED. `granted` is the number of open rollouts that the server's
        hello has allowed.
        """
        if self._stream is not None:
            replaced = "a newer stream with the same attachment id has replaced this stream"
            self._stream.end(Aborted(replaced, reason="ATTACHMENT_REPLACED"))
            self.leave(self._stream)
        self._stream = stream
        self._delta = wants_delta(hello.history, "hello.history", default=True)
        had_blobs = BLOBS in self._features
        self._features = features_from_wire(hello.features)
        self.done = self.tenant.lost = False
        self.tenant.away_since = None
        self._resent.clear()
        self._chat_window = window_of(hello)
        self._rollout_window = granted
        # The trainer perhaps does not know all rollouts of earlier streams. If an Init beyond the window then ended the
        # stream, the trainer would send the same Init on each new stream, and no rollout would go on.
        self._largest_rollout_window = granted + self.tenant.open
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

    def grant(self, window: int) -> None:
        """Set the number of rollouts that this trainer may have open."""
        if window != self._rollout_window:
            self._rollout_window = window
            self._largest_rollout_window = max(window, self._largest_rollout_window)
            self._send("window", pb.ServerWindow(max_open_rollouts=window), answer=False)

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
            self._stream.end(Unavailable("the server has shut down"))

    def _tick(self, stream: FrameStream) -> None:
        """Resend the chats and outcomes that have had no answer for more than `chat_silence` seconds.

        A proxy can lose a frame while the stream continues, so an answer possibly never comes.
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
        """Send as many waiting chats as the trainer's window allows."""
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

        With `answer`, the frame answers a frame of the trainer. The stream limits the bytes of unread answers.
        """
        if self._stream is not None:
            (self._stream.answer if answer else self._stream.send)(server_frame(kind, message))

    def _on_open_rollouts(self, message: pb.OpenRollouts) -> None:
        """Take over the rollouts for which the trainer waits, and name the unknown ones.

        Another attachment of the trainer possibly had these rollouts. The trainer has no outcome of a settled one, for
        example of an expired one, so the outcome is sent again.
        """
        take_over, owner = self._engine.acceptance.take_over, self.owner
        found = [(ref, take_over(ref.rollout_id, ref.attempt, owner=owner, peer=self.peer)) for ref in message.rollouts]
        unknown = [ref for ref, record in found if record is None]
        self._send("unknown_rollouts", pb.UnknownRollouts(rollouts=unknown))
        for ref, record in found:
            if self._engine.rollouts.superseded(owner, ref.rollout_id, ref.attempt):
                self.abandon((ref.rollout_id, ref.attempt, "", 0), AbandonReason.SUPERSEDED)
            elif record is not None:
                self._resend_delivered(record)

    def _on_init(self, message: rollout_pb2.InitRequest) -> None:
        rollout_id, attempt = message.rollout_id, message.attempt or 1
        full = self.tenant.open >= self._rollout_window and not self._engine.shutdown.draining
        beyond = False
        try:
            beyond = full and not self._engine.rollouts.holds(self.owner, rollout_id, attempt)
            if beyond:
                self._engine.acceptance.rejected[ResourceExhausted.code] += 1
                raise ResourceExhausted(
                    f"{self.tenant.open} rollouts are open, and this attachment may have {self._rollout_window}",
                    retry_after=1.0,
                    reason="WINDOW_EXCEEDED",
                )
            check_size(message, self._max_metadata)
            if message.HasField("callback"):
                raise InvalidArgument("callback", "must be unset, because an attachment's stream carries all calls")
            record, started = self._engine.acceptance.begin(init_from_wire(message), owner=self.owner, peer=self.peer)
            if self._accepting[record] >= MAX_EQUAL_INITS and not record.accepted.done():
                raise ResourceExhausted(
                    f"{MAX_EQUAL_INITS} equal Inits of this rollout already wait for their answer", retry_after=1.0
                )
        except CallError as error:
            if beyond and self.tenant.open >= self._largest_rollout_window:
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
        self._resend_delivered(record)

    def _resend_delivered(self, record: Record) -> None:
        """Send the outcome of a settled rollout again, because the trainer possibly does not have it."""
        outcome = record.delivery.outcome
        if outcome is None or record.delivery.undelivered:
            return
        key = (outcome.rollout_id, outcome.attempt, outcome.result_id)
        if key not in self._results:  # otherwise it was already sent again, and waits for its answer
            resent = self.complete(outcome, again=key in self._resent)
            resent.add_done_callback(lambda call: call.cancelled() or call.exception())
            self._resent.add(key)

    def _refuse_init(self, rollout_id: str, attempt: int, error: CallError) -> None:
        self._send("init_reply", pb.InitReply(rollout_id=rollout_id, attempt=attempt, status=refusal(error)))

    def _failed(self, error: BaseException) -> None:
        """End the stream, because an answer could not be sent.

        The trainer then sends the unanswered request again on the next stream.
        """
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
        """End the stream, because the trainer is done. Its unfinished rollouts then end at once."""
        self.done = True
        if self._stream is not None:
            self._stream.end(None)

    def _on_unknown_frame(self, message: pb.UnknownFrame) -> None:
        self._unknown_frames.warn(f"the trainer does not know the frame with the number {message.frame_number}")

    def _on_window(self, message: pb.TrainerWindow) -> None:
        self._chat_window = message.max_open_chats
        self._ask()
