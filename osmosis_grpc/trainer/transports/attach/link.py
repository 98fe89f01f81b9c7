"""The trainer's link to one agent server over a stream of frames.

If the stream breaks, the link sends every unanswered frame again on the next one. Chats are in chat_window.py, cancels
and subscriptions in open_requests.py.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from osmosis_grpc import __version__
from osmosis_grpc.network.frame_stream import FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, control_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol.errors import Aborted, CallError
from osmosis_grpc.protocol.types import CancelResult, InitRequest, Receipt, TrajectoryEvent
from osmosis_grpc.protocol.wire.attach import refusal, refused, trainer_frame, unknown_kind, window_of
from osmosis_grpc.protocol.wire.chat import RECEIPTS
from osmosis_grpc.protocol.wire.control import BLOBS, CANCEL_RESULT, FEATURES, GOODBYE, PROTOCOL, features_from_wire
from osmosis_grpc.protocol.wire.rollout import init_to_wire
from osmosis_grpc.supervise.throttled_log import Throttled
from osmosis_grpc.trainer.agent_server_link import (
    AgentServerLink,
    Report,
    Rollout,
    RolloutKey,
    SchedulerPort,
    ServerIdentity,
)
from osmosis_grpc.trainer.transports.attach.chat_window import OpenChats
from osmosis_grpc.trainer.transports.attach.open_requests import OpenRequests, Subscription, Subscriptions

log = logging.getLogger(__name__)

REFS = 1000
"""One frame names at most this many rollouts."""


class AttachedServer(AgentServerLink):
    """The link to one agent server. Each connection is a new stream."""

    def __init__(self, name: str, scheduler: SchedulerPort, *, server_key: str = "", delta: bool = True) -> None:
        super().__init__(name, scheduler, server_key=server_key)
        self.attachment_id = self.kept_attachment_id or scheduler.supervisor.system.new_secret()
        self._delta = delta
        self.stream: FrameStream | None = None
        """The current stream; None while the server is not attached."""
        self.chats = OpenChats(
            self.cache, scheduler.supervisor, unopened=self._unopened, superseded=scheduler.superseded
        )
        self.cancels = OpenRequests("cancel", pb.CancelFrame, self._send, _cancel_results)
        self.annotations: OpenRequests[annotation_pb2.AnnotateResponse] = OpenRequests(
            "annotate", pb.AnnotateFrame, self._send, lambda response: response
        )
        self.subscriptions = Subscriptions(self._send)
        self._unknown_frames = Throttled(log, scheduler.supervisor.system.monotonic)
        self.handlers: dict[str, Callable[[Any], None]] = {
            "unknown_rollouts": self._on_unknown_rollouts,
            "init_reply": self._on_init_reply,
            "cancel_reply": self._on_cancel_reply,
            "annotate_reply": self.annotations.on_reply,
            "chat": self.chats.on_chat,
            "complete": self._on_complete,
            "event": self.subscriptions.on_event,
            "unsubscribed": self.subscriptions.on_unsubscribed,
            "window": self._on_window,
            "draining": self._on_draining,
            "goodbye": self._on_draining,
            "abandon_chat": self.chats.on_abandon,
            "unknown_frame": self._on_unknown_frame,
            "": lambda frame: self._answer("unknown_frame", unknown_kind(frame)),
            "heartbeat": lambda _: None,
        }
        """The handler of each kind of frame."""

    @property
    def attached(self) -> bool:
        """Whether there is a stream."""
        return self.stream is not None

    @property
    def idle(self) -> bool:
        return super().idle and not (self.cancels or self.annotations or self.subscriptions)

    def greeting(self, granted: int, stream_number: int) -> bytes:
        """Return the trainer's hello on a stream with this number, which allows the server `granted` open chats."""
        return trainer_frame(
            "hello",
            pb.TrainerHello(
                attachment_id=self.attachment_id,
                process_id=self.scheduler.process_id,
                journal_id=self.identity.journal_id,
                version=__version__,
                protocol_min=PROTOCOL[0],
                protocol_max=PROTOCOL[1],
                max_open_chats=granted,
                history=rollout_pb2.HISTORY_FORM_DELTA if self._delta else rollout_pb2.HISTORY_FORM_FULL,
                features=FEATURES,
                stream_number=stream_number,
            ),
        )

    def take(self, stream: FrameStream, hello: pb.ServerHello, *, granted: int) -> None:
        """Use a stream on which both sides have sent their hellos. Send every unanswered frame again."""
        if self.stream is not None:
            self.stream.end(Aborted("another stream of this server took over", reason="ATTACHMENT_REPLACED"))
        self.stream = stream
        self.identify(
            ServerIdentity(hello.journal_id, hello.process_id, hello.version, tuple(map(str, hello.agent_loops)))
        )
        self.features = features_from_wire(hello.features)
        self.window = window_of(hello)
        self.chats.take(stream, granted)
        self.cancel_leaving()
        opened = [rollout for rollout in self.rollouts.values() if rollout.opened]
        refs = [pb.RolloutRef(rollout_id=r.key[0], attempt=r.key[1]) for r in opened]
        for first in range(0, len(refs), REFS):
            self._send("open_rollouts", pb.OpenRollouts(rollouts=refs[first : first + REFS]))
        slots = self.window - len(opened) - len(self.leaving)
        for rollout in [rollout for rollout in self.rollouts.values() if not rollout.opened]:
            slots -= 1
            if slots >= 0:
                self.send_init(rollout)
            else:
                self.scheduler.restart(rollout, "the server has fewer slots than before")
        self.cancels.resend_all()
        self.annotations.resend_all()
        self.subscriptions.resend_all()
        self.scheduler.changed()

    def leave(self, stream: FrameStream, problem: CallError | None) -> None:
        """Record that a stream has ended."""
        if self.stream is stream:
            self.stream = None
            self.chats.leave()
            self.problem = problem

    def send_init(self, rollout: Rollout) -> None:
        if self.stream is not None and rollout.written:
            init = init_to_wire(InitRequest(request=rollout.request, trace=rollout.trace), blobs=BLOBS in self.features)
            self.stream.send(trainer_frame("init", init))

    def cancel(self, rollout_id: str, reason: str, attempt: int = 0) -> "asyncio.Future[list[CancelResult]]":
        return self.cancels.ask(control_pb2.CancelRequest(rollout_id=rollout_id, reason=reason, attempt=attempt))

    def cancel_attempt(self, key: RolloutKey) -> None:
        rollout_id, attempt = key
        elsewhere = control_pb2.CancelRequest(rollout_id=rollout_id, attempt=attempt, reason="it runs elsewhere")
        self._send("cancel", pb.CancelFrame(id=f"{rollout_id} {attempt}", request=elsewhere))

    async def annotate(self, request: annotation_pb2.AnnotateRequest) -> annotation_pb2.AnnotateResponse:
        return await self.annotations.ask(request)

    async def events(
        self, rollout_id: str, attempt: int, after: int, *, tokens: bool
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        subscription = Subscription(rollout_id, attempt, after, tokens)
        self.subscriptions.begin(subscription)
        try:
            async for event in subscription.read(self.subscriptions.begin):
                yield event
        finally:
            self.subscriptions.end(subscription)

    def grant(self, open_chats: int) -> None:
        self.chats.grant(open_chats)

    def part(self) -> None:
        if self.stream is not None:
            if self.scheduler.ledger is None and GOODBYE in self.features:  # with a ledger, the next process continues
                self.stream.send(trainer_frame("goodbye", pb.Goodbye()))
            self.stream.end(None)

    def close(self, error: Exception) -> None:
        self.subscriptions.close(error)
        self.cancels.close(error)
        self.annotations.close(error)

    def _answer_outcome(self, raw: outcome_pb2.RolloutOutcome, receipt: Receipt | CallError) -> None:
        reply = pb.CompleteReply(rollout_id=raw.rollout_id, attempt=raw.attempt, result_id=raw.result_id)
        if isinstance(receipt, CallError):
            reply.status.CopyFrom(refusal(receipt))
        else:
            reply.receipt = RECEIPTS.numbers[receipt]
        self._answer("complete_reply", reply)

    def _unopened(self, key: RolloutKey) -> bool:
        rollout = self.rollouts.get(key)
        return rollout is not None and not rollout.opened

    def _send(self, kind: str, message: Any) -> None:
        if self.stream is not None:
            self.stream.send(trainer_frame(kind, message))

    def _answer(self, kind: str, message: Any) -> None:
        if self.stream is not None:
            self.stream.answer(trainer_frame(kind, message))

    # Frames of the server.

    def _on_cancel_reply(self, reply: pb.CancelReply) -> None:
        name, _, attempt = reply.id.rpartition(" ")
        if reply.WhichOneof("result") == "status" and attempt.isdecimal() and (name, int(attempt)) in self.leaving:
            self.scheduler.cancel_later(self, name)
        for row in reply.response.results:
            if row.disposition != control_pb2.CANCEL_DISPOSITION_CANCELLED:
                self.has_ended(row.rollout_id, max(row.attempt, _attempt_of(reply.id, row.rollout_id)))
        self.cancels.on_reply(reply)

    def _on_unknown_rollouts(self, message: pb.UnknownRollouts) -> None:
        found = [self.rollouts.get((ref.rollout_id, ref.attempt)) for ref in message.rollouts]
        forgotten = [rollout for rollout in found if rollout is not None]
        if forgotten:
            log.warning("server %s has forgotten %d rollouts; they start again", self.name, len(forgotten))
        for rollout in forgotten:
            self.scheduler.lost(rollout, f"server {self.name} has forgotten it")

    def _on_init_reply(self, reply: pb.InitReply) -> None:
        rollout = self.rollouts.get((reply.rollout_id, reply.attempt))
        if rollout is None or rollout.opened:
            return
        if reply.WhichOneof("result") != "response":
            self.scheduler.init_refused(rollout, self, refused(reply.status))
        elif self.init_answered(rollout, reply.response.tools):
            self.chats.opened(rollout.key)

    def _on_complete(self, message: outcome_pb2.CompleteRequest) -> None:
        raw = message.outcome
        if self.leaving:
            self.has_ended(raw.rollout_id, raw.attempt)
        self.scheduler.take_outcome(Report(self, raw, partial(self._answer_outcome, raw)))

    def _on_window(self, message: pb.ServerWindow) -> None:
        self.window = message.max_open_rollouts
        self.scheduler.changed()

    def _on_unknown_frame(self, message: pb.UnknownFrame) -> None:
        self._unknown_frames.warn(f"server {self.name} does not know the frame with the number {message.frame_number}")

    def _on_draining(self, message: pb.Draining | pb.Goodbye) -> None:
        self.window = 0


def _attempt_of(cancel_id: str, rollout_id: str) -> int:
    """Return the attempt that a frame of cancel_attempt() cancels; 0 for any other cancel.

    The id of the cancel is needed, because the server's answer names the newest attempt that it has, perhaps a lower
    one.
    """
    name, _, attempt = cancel_id.rpartition(" ")
    return int(attempt) if name == rollout_id and attempt.isdecimal() else 0


def _cancel_results(response: control_pb2.CancelResponse) -> list[CancelResult]:
    return [CANCEL_RESULT.from_wire(row) for row in response.results]
