"""A link over a callback: calls in place of a stream. Both sides of the suite use it."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from google.protobuf.message import Message
from google.rpc import status_pb2

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.links import Link
from osmosis_grpc.testing.conformance.trace import Trace

CALL = job("testing.conformance.call", OnFailure.RAISE)


class CallLink(Link):
    """Frames that the suite sends are calls or answers to calls. Calls and answers that come are frames.

    It is its own inbox. `sent` is the type of the frames that the suite sends.
    """

    def __init__(self, sent: type[Message], trace: Trace) -> None:
        super().__init__(sent, trace, "callback")
        self.frames: list[Any] = []
        self.over: str | None = None
        self.details, self.status = "", status_pb2.Status()
        self.waiting: dict[tuple[Any, ...], list[asyncio.Future[Any]]] = {}
        """The calls that came and have no answer, by the names of their chat, outcome or Init."""
        self._news = asyncio.Condition()
        self._calls: set[asyncio.Task[Any]] = set()
        self.use(self)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """There is nothing to open."""

    async def until(self, condition: Any, what: str = "", wait: float | None = None) -> None:
        if what:
            await super().until(condition, what, wait)
        else:
            async with self._news:
                await self._news.wait_for(condition)

    async def came(self, frame: Any) -> None:
        """Add what came as a frame."""
        async with self._news:
            self.frames.append(frame)
            self._news.notify_all()

    async def served(self, key: tuple[Any, ...], frame: Any) -> Any:
        """Serve a call: add its frame, and return the answer that the case gives."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(key, []).append(answer)
        await self.came(frame)
        return await answer

    def answer(self, key: tuple[Any, ...], value: Any) -> None:
        """Answer all calls with this key."""
        for each in self.waiting.pop(key, ()):
            if not each.done():
                each.set_result(value)

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Make a call and go on."""
        task = child(CALL, work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def cancel_calls(self) -> None:
        """Cancel all calls of the suite."""
        for task in self._calls:
            task.cancel()
