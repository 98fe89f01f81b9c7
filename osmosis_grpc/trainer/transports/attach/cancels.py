"""Cancels that one agent server has not answered yet. They are sent again on the next stream."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.types import CancelResult
from osmosis_grpc.wire.attach import refused
from osmosis_grpc.wire.control import CANCEL_RESULT

Results = list[CancelResult]


class Cancels:
    """The open cancels of one agent server.

    `send` sends a frame if there is a stream. `has_ended` is called with the id and attempt of each rollout that the
    server no longer runs.
    """

    def __init__(self, send: Callable[[str, Any], None], has_ended: Callable[[str, int], None]) -> None:
        self._send = send
        self._has_ended = has_ended
        self._open: dict[str, tuple[pb.CancelFrame, asyncio.Future[Results]]] = {}
        self._ids = itertools.count(1)

    def ask(self, request: control_pb2.CancelRequest) -> "asyncio.Future[Results]":
        """Send a cancel, now or on the next stream. Returns a future of the answer. The future raises the error."""
        ask = pb.CancelFrame(id=str(next(self._ids)), request=request)
        future: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        self._open[ask.id] = ask, future
        self._send("cancel", ask)
        return future

    def resend_all(self) -> None:
        """Send every unanswered cancel on a new stream."""
        for ask, _ in self._open.values():
            self._send("cancel", ask)

    def close(self, error: Exception) -> None:
        """Fail every open cancel with this error."""
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(error)
        self._open.clear()

    def on_reply(self, reply: pb.CancelReply) -> None:
        """Handle the server's answer to a cancel."""
        for row in reply.response.results:
            if row.disposition != control_pb2.CANCEL_DISPOSITION_CANCELLED:
                self._has_ended(row.rollout_id, row.attempt)
        _, future = self._open.pop(reply.id, (None, None))
        if future is None or future.done():
            return
        if reply.WhichOneof("result") == "response":
            future.set_result([CANCEL_RESULT.from_wire(row) for row in reply.response.results])
        else:
            future.set_exception(refused(reply.status))
