"""What is to end on an agent server: what was cancelled, and rollouts that go on elsewhere.

Kept until the server has answered, and told again on the next stream.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.trainer.rollout import RolloutKey
from osmosis_grpc.wire.attach import refused


class Cancels:
    """Those of one agent server. `send` sends a frame where there is a stream, `changed` learns that there is room."""

    def __init__(self, send: Callable[[str, Any], None], changed: Callable[[], None]) -> None:
        self.leaving: set[RolloutKey] = set()
        """Rollouts that go on elsewhere and may still run there."""
        self._send = send
        self._changed = changed
        self._asked: dict[str, tuple[pb.CancelAsk, asyncio.Future[control_pb2.CancelResponse]]] = {}
        self._ids = itertools.count(1)

    def ask(self, request: control_pb2.CancelRequest) -> "asyncio.Future[control_pb2.CancelResponse]":
        """Ask to cancel, now or on the next stream."""
        ask = pb.CancelAsk(id=str(next(self._ids)), request=request)
        future: asyncio.Future[control_pb2.CancelResponse] = asyncio.get_running_loop().create_future()
        self._asked[ask.id] = ask, future
        self._send("cancel", ask)
        return future

    def leave(self, key: RolloutKey) -> None:
        """A rollout goes on elsewhere, or anew: what runs there is to end."""
        self.leaving.add(key)
        self._send_cancel(*key)

    def lost(self, keys: Iterable[RolloutKey]) -> None:
        """The server is lost: should it come back, these are to end there."""
        self.leaving.update(keys)

    def forgotten(self) -> None:
        """The server has forgotten what it ran."""
        self.leaving.clear()

    def resend_leaving(self) -> None:
        """Tell on a new stream what runs elsewhere."""
        for key in self.leaving:
            self._send_cancel(*key)

    def resend_all(self) -> None:
        """Ask on a new stream what was not answered."""
        for ask, _ in self._asked.values():
            self._send("cancel", ask)

    def left(self, rollout_id: str, attempt: int) -> None:
        """A rollout that goes on elsewhere runs there no more."""
        for key in [key for key in self.leaving if key[0] == rollout_id and (key[1] <= attempt or not attempt)]:
            self.leaving.discard(key)
        self._changed()

    def close(self, error: Exception) -> None:
        """End every wait for an answer with this error."""
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(error)
        self._asked.clear()

    def on_reply(self, reply: pb.CancelReply) -> None:
        """What a cancel met."""
        for row in reply.response.results:
            if row.disposition != control_pb2.CANCEL_DISPOSITION_CANCELLED:
                self.left(row.rollout_id, row.attempt)
        _, future = self._asked.pop(reply.id, (None, None))
        if future is None or future.done():
            return
        if reply.WhichOneof("result") == "response":
            answer = control_pb2.CancelResponse()
            answer.CopyFrom(reply.response)
            future.set_result(answer)
        else:
            future.set_exception(refused(reply.status))

    def _send_cancel(self, rollout_id: str, attempt: int) -> None:
        elsewhere = control_pb2.CancelRequest(rollout_id=rollout_id, attempt=attempt, reason="it runs elsewhere")
        self._send("cancel", pb.CancelAsk(id=f"{rollout_id} {attempt}", request=elsewhere))
