"""Requests of an attachment whose answers wait for the journal: cancels and annotations."""

from collections.abc import Callable
from typing import Any

from osmosis_grpc.engine import Engine
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol.errors import CallError, ResourceExhausted
from osmosis_grpc.protocol.wire.attach import refusal
from osmosis_grpc.server.requests import annotate, cancel
from osmosis_grpc.supervise import OnFailure, job

CANCELLED = job("server.answer_cancel", OnFailure.REPORT, "callback")
ANNOTATE = job("server.annotate", OnFailure.REPORT)

MAX_CANCELLING = 4 * 1024 * 1024
"""While more than this many bytes of replies to cancels wait for the journal, further cancels are refused."""
MAX_ANNOTATING = 64 * 1024 * 1024
"""While more than this many bytes of annotations wait for the journal, further annotations are refused."""


class JournaledRequests:
    """The waiting requests of one attachment.

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
        """The bytes of the replies to cancels that wait."""
        self._annotating = 0
        """The bytes of the annotations that wait."""

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
