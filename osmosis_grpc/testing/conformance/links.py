"""A link carries frames between the suite and the side under test, however they are connected.

Over Attach and Accept, the frames are those of the stream. With callbacks, a link converts sent frames to calls, and
converts received calls and answers to frames. So a case sees the same frames in all three modes.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message
from google.rpc import status_pb2

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.calls import Trace
from osmosis_grpc.testing.conformance.patterns import differences
from osmosis_grpc.testing.conformance.protobuf_data import (
    CaseError,
    Data,
    check_fields,
    from_data,
    status_data,
    to_data,
)
from osmosis_grpc.testing.raw import RawStream

WAIT = 8.0
"""How many seconds a step waits at most. A case can set another `wait`."""
NAMES = ("rollout_id", "attempt", "sample", "chat_number", "id", "result_id")
"""The fields that choose a frame. An expectation with one of them skips frames with another value."""
MakeHello = Callable[[Mapping[str, Any]], dict[str, Any]]
CALL = job("testing.conformance.call", OnFailure.RAISE)


class Failed(Exception):
    """The side under test does not do what a case expects."""


class OutOfTime(Failed):
    """Something did not come in time. A busy machine may be the reason."""


class Inbox(Protocol):
    """What has arrived over a link."""

    frames: list[Any]
    over: str | None
    details: str
    status: Any

    async def until(self, condition: Any) -> None:
        """Wait until a condition holds. Raises TimeoutError."""


class Link:
    """A link over one inbox at a time. Subclasses send. `sent` is the type of the frames that the suite sends."""

    def __init__(self, sent: type[Message], trace: Trace, name: str) -> None:
        self.trace = trace
        self.name = name
        self.inbox: Inbox
        self.wait = WAIT
        self._sent = sent
        self._taken: set[int] = set()
        self._shown = 0

    # What subclasses implement.

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """Open the link, and send this hello unless it is None. With callbacks, there is nothing to open."""
        raise NotImplementedError

    async def write(self, frames: Sequence[Any]) -> None:
        """Send frames together."""
        raise NotImplementedError

    async def write_bytes(self, data: bytes) -> None:
        """Send bytes in place of a message of the stream."""
        raise CaseError(f"bytes cannot be sent over {self.name}")

    async def half_close(self) -> None:
        """Send no more."""
        raise CaseError(f"{self.name} cannot be half-closed")

    async def cut(self) -> None:
        """Break the connection."""
        raise CaseError(f"{self.name} cannot be cut")

    async def close(self) -> None:
        """Release what belongs to the link."""

    # What all links share.

    async def send(self, frames: Sequence[Mapping[str, Any]]) -> None:
        """Send frames, given as data, in one message."""
        made = [from_data(self._sent, frame) for frame in frames]
        for frame in frames[:3]:
            self.trace.add("->", self.name, frame)
        if len(frames) > 3:
            self.trace.add("->", self.name, f"and {len(frames) - 3} more frames")
        try:
            await self.write(made)
        except (OSError, RuntimeError, asyncio.InvalidStateError) as error:
            raise Failed(f"{self.name}: nothing can be sent: {error}") from None

    async def take(self, expected: Mapping[str, Any], saved: Data, wait: float | None = None) -> Any:
        """Return the next frame of the expected kind. Raises Failed if it differs or does not come."""
        kind, fields = _only(expected)
        named = fields.get("outcome", {}) if kind == "complete" else fields
        chosen = {name: named[name] for name in NAMES if name in named and not isinstance(named[name], Mapping)}
        try:
            await self._until(lambda: self.find(kind, chosen) is not None or self.inbox.over is not None, wait)
        except TimeoutError:
            raise OutOfTime(f"no {kind} came within {wait or self.wait:g} s{self._wanted(chosen)}") from None
        found = self.find(kind, chosen)
        if found is None:
            raise Failed(f"the stream ended before a {kind}{self._wanted(chosen)}: {self.end_text()}")
        self._taken.add(found)
        message = getattr(self.inbox.frames[found], kind)
        check_fields(message.DESCRIPTOR, fields)
        lines = list(differences(fields, to_data(message), saved))
        if lines:
            raise Failed("\n".join(f"{kind}.{line}" if line[0] not in ":[" else f"{kind}{line}" for line in lines))
        return message

    async def until(self, condition: Any, what: str, wait: float | None = None) -> None:
        """Wait until a condition holds. Raises Failed if it does not; `what` says what was expected."""
        try:
            await self._until(condition, wait)
        except TimeoutError:
            raise OutOfTime(f"not within {wait or self.wait:g} s: {what}") from None

    def fresh(self, kind: str) -> list[Any]:
        """Return the frames of a kind that no step has taken."""
        return [
            getattr(frame, kind)
            for index, frame in enumerate(self.inbox.frames)
            if index not in self._taken and frame.WhichOneof("frame") == kind
        ]

    async def ended(self, wait: float | None = None) -> Data:
        """Wait for the end of the stream and return its status. Raises Failed if the stream does not end."""
        await self.until(lambda: self.inbox.over is not None, "the end of the stream", wait)
        status = status_data(self.inbox.status) | {"code": self.inbox.over}
        self.trace.add("<-", f"{self.name} ended", status)
        return status

    def end_text(self) -> str:
        """Return the status of the ended stream for people."""
        return f"{self.inbox.over} {self.inbox.details}".strip()

    def use(self, inbox: Inbox) -> None:
        """Continue with the inbox of a new stream."""
        self.show()
        self.inbox = inbox
        self._taken, self._shown = set(), 0

    def show(self) -> None:
        """Add what has arrived since the last call to the trace."""
        frames = getattr(self, "inbox", None) and self.inbox.frames
        for frame in (frames or [])[self._shown :]:
            self.trace.add("<-", self.name, to_data(frame, defaults=False))
        self._shown = len(frames or [])

    async def _until(self, condition: Any, wait: float | None) -> None:
        try:
            async with asyncio.timeout(wait or self.wait):
                await self.inbox.until(condition)
        finally:
            self.show()

    def find(self, kind: str, chosen: Mapping[str, Any]) -> int | None:
        """Return the index of the first frame of a kind that has these values and that no step has taken."""
        for index, frame in enumerate(self.inbox.frames):
            if index in self._taken or frame.WhichOneof("frame") != kind:
                continue
            message = getattr(frame, kind)
            whole = message.outcome if kind == "complete" else message
            if all(getattr(whole, name, None) == value for name, value in chosen.items()):
                return index
        return None

    def _wanted(self, chosen: Mapping[str, Any]) -> str:
        others = [frame.WhichOneof("frame") or "?" for frame in self.inbox.frames]
        names = ", ".join(f"{name} {value}" for name, value in chosen.items())
        return f"{' with ' + names if names else ''}; the frames so far: {', '.join(others[-20:]) or 'none'}"


class StreamLink(Link):
    """A link over one stream call at a time. Subclasses open it."""

    inbox: RawStream

    async def write(self, frames: Sequence[Any]) -> None:
        await self._guarded(self.inbox.send(*frames))

    async def write_bytes(self, data: bytes) -> None:
        self.trace.add("->", f"{self.name} bytes", data[:64].hex())
        await self._guarded(self.inbox.send_bytes(data))

    async def half_close(self) -> None:
        self.trace.add("->", f"{self.name} half-closed")
        await self._guarded(self.inbox.leave())

    async def cut(self) -> None:
        self.trace.add("->", f"{self.name} cut")
        await self.inbox.cut()

    def started(self, stream: RawStream) -> None:
        """Continue with a new stream."""
        stream.timeout = 3600.0  # the link has the limits
        self.use(stream)

    async def _guarded(self, write: Any) -> None:
        """Write. Raises Failed if the other side does not read. If the stream has ended, leave that to a later step."""
        try:
            async with asyncio.timeout(self.wait):
                await write
        except TimeoutError:
            raise Failed(f"{self.name}: the other side does not read") from None
        except Exception as error:
            if type(error).__module__.startswith("grpc") or isinstance(error, asyncio.InvalidStateError):
                self.trace.add("->", f"{self.name}: not sent, the stream has ended")
            else:
                raise


class DialledLink(StreamLink):
    """A stream that the suite opens. `hello` completes the fields that a case gives to the suite's hello, as data."""

    def __init__(self, call: Any, channel: Any, sends: Any, hello: MakeHello, trace: Trace, name: str) -> None:
        super().__init__(sends().frames.add().__class__, trace, name)
        self._call = call
        self._channel = channel
        self._sends = sends
        self._hello = hello

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        self.trace.add("->", f"{self.name} opened")
        self.started(RawStream(self._call(), self._sends))
        if hello is not None:
            await self.send([{"hello": self._hello(hello)}])

    async def finish(self, _status: str) -> None:
        """Break the stream, because the side that dials cannot end it with a status."""
        await self.cut()

    async def close(self) -> None:
        with contextlib.suppress(AttributeError):
            if self.inbox.over is None:
                await self.inbox.cut()
        await self._channel.close()


class ServedLink(StreamLink):
    """A stream that the side under test opens at a listener of the suite."""

    def __init__(self, listener: Any, sent: type[Message], trace: Trace, name: str) -> None:
        super().__init__(sent, trace, name)
        self.listener = listener

    async def half_close(self) -> None:
        await self.finish("OK")

    async def cut(self) -> None:
        await self.finish("UNAVAILABLE")

    async def finish(self, status: str) -> None:
        """End the stream with a status."""
        self.trace.add("->", f"{self.name} ended with {status}")
        self.listener.finish(self.inbox, status)


def _only(expected: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if len(expected) != 1:
        raise CaseError(f"an expected frame has one kind, not {', '.join(expected) or 'none'}")
    kind, fields = next(iter(expected.items()))
    return kind, fields or {}


class CallLink(Link):
    """A link over callbacks. Sent frames become calls or answers; received calls and answers become frames.

    The link is its own inbox. `sent` is the type of the frames that the suite sends.
    """

    def __init__(self, sent: type[Message], trace: Trace) -> None:
        super().__init__(sent, trace, "callback")
        self.frames: list[Any] = []
        self.over: str | None = None
        self.details, self.status = "", status_pb2.Status()
        self.waiting: dict[tuple[Any, ...], list[asyncio.Future[Any]]] = {}
        """The received calls that have no answer yet, by the key of their chat, outcome or Init."""
        self._news = asyncio.Condition()
        self._calls: set[asyncio.Task[Any]] = set()
        self.use(self)

    async def open(self, hello: Mapping[str, Any] | None) -> None:
        """Do nothing, because there is nothing to open."""

    async def until(self, condition: Any, what: str = "", wait: float | None = None) -> None:
        if what:
            await super().until(condition, what, wait)
        else:
            async with self._news:
                await self._news.wait_for(condition)

    async def came(self, frame: Any) -> None:
        """Add a received call or answer as a frame."""
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
        """Start a call, and do not wait for its answer."""
        task = child(CALL, work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def cancel_calls(self) -> None:
        """Cancel all calls of the suite."""
        for task in self._calls:
            task.cancel()
