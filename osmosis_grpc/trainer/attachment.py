"""The trainer's end of an attachment: one agent server, whatever stream there is to it.

Rollouts that were sent to the server are kept here until they are over, and told again on the
next stream. Its chats, cancels and subscriptions have files of their own.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from osmosis_grpc import __version__
from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2, message_pb2, rollout_pb2, trainer_pb2
from osmosis_grpc.engine.failpoints import reach
from osmosis_grpc.errors import Aborted, CallError, Internal, InvalidArgument, LedgerError
from osmosis_grpc.link.stream import FrameStream
from osmosis_grpc.storage.ledger.ledger import Ledger
from osmosis_grpc.trainer.cancels import Cancels
from osmosis_grpc.trainer.chats.cache import ChatCache
from osmosis_grpc.trainer.chats.ledger_codec import init_bytes
from osmosis_grpc.trainer.open_chats import OpenChats
from osmosis_grpc.trainer.rollout import Owner, Pin, Rollout, RolloutKey
from osmosis_grpc.trainer.subscriptions import Subscriptions
from osmosis_grpc.types import Completion, InitRequest, Outcome
from osmosis_grpc.wire.attach import refusal, refused, trainer_frame
from osmosis_grpc.wire.control import PROTOCOL
from osmosis_grpc.wire.message import tools_from_wire
from osmosis_grpc.wire.rollout import completion_from_wire, init_to_wire
from osmosis_grpc.wire.trainer import outcome_to_wire

log = logging.getLogger(__name__)

PROCESS_UUID = secrets.token_hex(16)
REFS = 1000
"""Rollouts named in one frame."""


class Attachment:
    """One agent server."""

    def __init__(
        self,
        name: str,
        owner: Owner,
        cache: ChatCache,
        *,
        delta: bool = True,
        place: str = "",
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        """Its target, or where it dialled from."""
        self.credential = ""
        """By what name a server that dialled in is known."""
        self.place = place
        """What the ledger knows it by; empty where it could not be found again."""
        self._ledger = ledger
        kept, journal_id = ledger.attachment(place) if ledger is not None and place else ("", "")
        self.attachment_id = kept or secrets.token_urlsafe(24)
        self.hello = pb.ServerHello(journal_id=journal_id)
        """The newest."""
        self.rollouts: dict[RolloutKey, Rollout] = {}
        """Those sent there and not over."""
        self.pinned: dict[str, Pin] = {}
        """Groups that are kept together here."""
        self.problem: CallError | None = None
        """Why the last stream ended."""
        self.refusal: CallError | None = None
        """Why it cannot be used; set only while it has never been attached."""
        self.used = False
        """Whether it was ever attached."""
        self._owner = owner
        self._cache = cache
        self._delta = delta
        self._stream: FrameStream | None = None
        self._window = 0
        self.chats = OpenChats(cache, self._unopened)
        self.cancels = Cancels(self._send, owner.changed)
        self.subscriptions = Subscriptions(self._send)
        self.handlers: dict[str, Callable[[Any], None]] = {
            "unknown_rollouts": self._on_unknown_rollouts,
            "init_reply": self._on_init_reply,
            "cancel_reply": self.cancels.on_reply,
            "chat": self.chats.on_chat,
            "complete": self._on_complete,
            "event": self.subscriptions.on_event,
            "unsubscribed": self.subscriptions.on_unsubscribed,
            "window": self._on_window,
            "draining": self._on_draining,
            "heartbeat": lambda _: None,
        }
        """What to do with a frame, by its kind."""

    @property
    def attached(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None

    @property
    def window(self) -> int:
        """How many rollouts may be open there."""
        return self._window

    @property
    def free(self) -> int:
        """How many more rollouts may be sent there."""
        return self._window - len(self.rollouts) - len(self.cancels.leaving) if self._stream is not None else 0

    def hosts(self, agent_loop: str) -> bool:
        """Whether an agent loop of this name is there; "" is whatever there is."""
        return not agent_loop or agent_loop in self.hello.agent_loops

    def greeting(self, granted: int) -> bytes:
        """The trainer's hello."""
        return trainer_frame(
            "hello",
            pb.TrainerHello(
                attachment_id=self.attachment_id,
                process_uuid=PROCESS_UUID,
                journal_id=self.hello.journal_id,
                version=__version__,
                protocol_min=PROTOCOL[0],
                protocol_max=PROTOCOL[1],
                max_open_chats=granted,
                history=rollout_pb2.HISTORY_FORM_DELTA if self._delta else rollout_pb2.HISTORY_FORM_FULL,
            ),
        )

    def take(self, stream: FrameStream, hello: pb.ServerHello, *, granted: int) -> None:
        """Go on over this stream, both hellos said: what is unanswered is sent again."""
        if self._stream is not None:
            self._stream.end(Aborted("another stream of this server took over"))
        self._stream = stream
        if hello.journal_id != self.hello.journal_id:  # it has forgotten what it ran
            self.cancels.forgotten()
        self.hello = pb.ServerHello()
        self.hello.CopyFrom(hello)
        if self._ledger is not None and self.place:
            self._ledger.saw(self.place, hello.journal_id)
        self.problem = self.refusal = None
        self.used = True
        self._window = hello.max_open_rollouts
        self.chats.take(stream, granted)
        self.cancels.resend_leaving()
        opened = [rollout for rollout in self.rollouts.values() if rollout.opened]
        for some in _batches([pb.RolloutRef(rollout_id=r.key[0], attempt=r.key[1]) for r in opened]):
            self._send("open_rollouts", pb.OpenRollouts(rollouts=some))
        room = self._window - len(opened) - len(self.cancels.leaving)
        for rollout in [rollout for rollout in self.rollouts.values() if not rollout.opened]:
            room -= 1
            if room >= 0:
                self._send_init(rollout)
            else:
                self._owner.restart(rollout, "the server has less room than before")
        self.cancels.resend_all()
        self.subscriptions.resend_all()
        self._owner.changed()

    def leave(self, stream: FrameStream, problem: CallError | None) -> None:
        """A stream has ended."""
        if self._stream is stream:
            self._stream = None
            self.chats.leave()
            self.problem = problem

    def start(self, rollout: Rollout) -> None:
        """Send a rollout there, once the ledger has it."""
        rollout.opened = False
        self.adopt(rollout)
        if self._ledger is None:
            self._send_init(rollout)
            return
        rollout.written = False
        self._ledger.place(
            *rollout.key,
            init_bytes(rollout.request),
            self.place,
            rollout.affinity_key,
            partial(self._placed, rollout, rollout.key),
        )

    def _placed(self, rollout: Rollout, key: RolloutKey, _: None, error: LedgerError | None) -> None:
        if self.rollouts.get(key) is not rollout:
            return  # it is over, or goes on elsewhere
        if error is not None:
            self.over(rollout)
            self._owner.unwritten(rollout, error)
            return
        reach("ledger.init.committed")
        rollout.written = rollout.begun = True
        self._send_init(rollout)

    def adopt(self, rollout: Rollout) -> None:
        """A rollout is there, or is going to be."""
        rollout.server = self
        self.rollouts[rollout.key] = rollout
        if rollout.affinity_key:
            pin = self.pinned.setdefault(rollout.affinity_key, Pin())
            pin.open += 1
            pin.started += 1

    def over(self, rollout: Rollout) -> None:
        """A rollout is over, or goes on elsewhere."""
        if self.rollouts.pop(rollout.key, None) is None:
            return
        pin = self.pinned.get(rollout.affinity_key)
        if pin is not None:
            group = rollout.request.group
            pin.open -= 1
            if not pin.open and pin.started >= (group.size if group else 0):
                del self.pinned[rollout.affinity_key]

    def let_go(self, rollout: Rollout) -> None:
        """A rollout goes on elsewhere, or anew: what runs there is to end."""
        self.over(rollout)
        self.cancels.leave(rollout.key)

    def part(self) -> None:
        """Leave in good order: what is queued still goes out, and the server reads it."""
        if self._stream is not None:
            self._stream.leave()

    def close(self, error: Exception) -> None:
        """End every wait for this server with this error."""
        self.subscriptions.close(error)
        self.cancels.close(error)

    def lost(self, error: CallError) -> None:
        """It was away for too long: should it come back, what it ran is to end there."""
        self.cancels.lost(self.rollouts)
        self.close(error)

    def send_outcome(self, completion: Completion, outcome: Outcome | CallError) -> None:
        """Answer a completion."""
        reply = pb.CompleteReply(
            rollout_id=completion.rollout_id, attempt=completion.attempt, result_id=completion.result_id
        )
        if isinstance(outcome, CallError):
            reply.status.CopyFrom(refusal(outcome))
        else:
            reply.outcome = outcome_to_wire(outcome)
        self._answer("complete_reply", reply)

    def _unopened(self, key: RolloutKey) -> bool:
        """Whether the answer to a rollout's Init is still to come."""
        rollout = self.rollouts.get(key)
        return rollout is not None and not rollout.opened

    def _send(self, kind: str, message: Any) -> None:
        if self._stream is not None:
            self._stream.send(trainer_frame(kind, message))

    def _answer(self, kind: str, message: Any) -> None:
        if self._stream is not None:
            self._stream.answer(trainer_frame(kind, message))

    def _send_init(self, rollout: Rollout) -> None:
        if self._stream is not None and rollout.written:
            self._stream.send(trainer_frame("init", init_to_wire(InitRequest(request=rollout.request))))

    # What the server sends.

    def _on_unknown_rollouts(self, message: pb.UnknownRollouts) -> None:
        found = [self.rollouts.get((ref.rollout_id, ref.attempt)) for ref in message.rollouts]
        forgotten = [rollout for rollout in found if rollout is not None]
        if forgotten:
            log.warning("server %s has forgotten %d rollouts; they start again", self.name, len(forgotten))
        for rollout in forgotten:
            self._owner.lost(rollout, f"server {self.name} has forgotten it")

    def _on_init_reply(self, reply: pb.InitReply) -> None:
        rollout = self.rollouts.get((reply.rollout_id, reply.attempt))
        if rollout is None or rollout.opened:
            return
        if reply.WhichOneof("result") == "response":
            rollout.set_opened()
            try:
                tools = tools_from_wire(reply.response.tools, "tools")
                self._cache.rollout(*rollout.key, time.monotonic()).tools = tools
                if self._ledger is not None:
                    self._ledger.opened(*rollout.key, message_pb2.Tools(tools=reply.response.tools).SerializeToString())
            except CallError as unreadable:
                self.cancels.ask(control_pb2.CancelRequest(rollout_id=rollout.request.rollout_id))
                error: CallError = Internal(f"the server's answer cannot be read: {unreadable}")
            else:
                self.chats.opened(rollout.key)
                return
        else:
            error = refused(reply.status)
        self.over(rollout)
        if error.retryable:
            self._owner.put_back(rollout, 1.0 if error.retry_after is None else error.retry_after)
        else:
            self._owner.refused(rollout, error)
        self._owner.changed()

    def _on_complete(self, message: trainer_pb2.CompleteRequest) -> None:
        if self.cancels.leaving:
            self.cancels.left(message.completion.rollout_id, message.completion.attempt)
        try:
            completion = completion_from_wire(message.completion, "completion")
        except InvalidArgument as error:
            raw = message.completion
            bare = pb.CompleteReply(rollout_id=raw.rollout_id, attempt=raw.attempt, result_id=raw.result_id)
            bare.status.CopyFrom(refusal(error))
            self._answer("complete_reply", bare)
            self._owner.unusable(self, raw.rollout_id, raw.attempt, error)
            return
        try:
            self._owner.completed(self, completion, message.completion)
        except CallError as error:
            self.send_outcome(completion, error)

    def _on_window(self, message: pb.ServerWindow) -> None:
        self._window = message.max_open_rollouts
        self._owner.changed()

    def _on_draining(self, message: pb.Draining) -> None:
        self._window = 0


def _batches(refs: list[pb.RolloutRef]) -> Iterator[list[pb.RolloutRef]]:
    for start in range(0, len(refs), REFS):
        yield refs[start : start + REFS]
