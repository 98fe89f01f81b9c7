"""Requests that one agent server has not answered yet. They are sent again on the next stream."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from osmosis_grpc.protocol.wire.attach import refused

Answer = TypeVar("Answer")


class OpenRequests(Generic[Answer]):
    """The unanswered requests of one kind, for example cancels.

    `frame` is the message of the frame, with an `id` and a `request`. `send` sends a frame if there is a stream. `read`
    makes the result of a call from the response in the answer.
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
        """Send a request, now or on the next stream. Returns a future of the answer. The future raises the error."""
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
        """Handle the server's answer. Unknown ids have no effect."""
        _, future = self._open.pop(reply.id, (None, None))
        if future is None or future.done():
            return
        if reply.WhichOneof("result") == "response":
            future.set_result(self._read(reply.response))
        else:
            future.set_exception(refused(reply.status))
