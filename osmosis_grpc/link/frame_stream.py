"""One stream of an attachment: it sends frames in batches, hands received frames to handlers, and sends heartbeats.

All waiting frames go out in one message, without a timer. Event frames wait behind all others. FrameStream is the same
on both sides: it sends bytes and receives protobuf messages.

The waiting frames are bounded, also if the other side never reads. Requests are bounded by the windows and events by
EVENT_LIMIT. Answers are bounded here, because the other side could ask without end. One side, the trainer, pauses its
reading while its answers wait. The other side, the server, always reads, so the trainer's answers go out at some time
and the trainer reads again: two sides that both pause would wait for each other for ever. A server therefore ends the
stream when more than MAX_ANSWERS bytes of its answers wait, far more than an honest trainer can ask for within its
windows. A stream also ends when the other side reads nothing for SILENCE seconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc

from osmosis_grpc.errors import CallError, Internal, InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.link.handlers import decoded
from osmosis_grpc.supervise import OnFailure, child, job

READ = job("link.read_stream", OnFailure.RAISE)
WRITE = job("link.write_stream", OnFailure.RAISE)
BEAT = job("link.watch_stream", OnFailure.RAISE)

MAX_FRAMES = 4096
"""Frames in a message, at most."""
MAX_BATCH_BYTES = 1024 * 1024
"""Bytes of a message, at most, unless it is one larger frame."""
EVENT_LIMIT = 4 * 1024 * 1024
"""Bytes of waiting events from which on more of them have to wait."""
ANSWER_LIMIT = 4 * 1024 * 1024
"""Bytes of waiting answers above which a side that pauses reads nothing."""
MAX_ANSWERS = 64 * 1024 * 1024
"""Bytes of waiting answers above which a side that always reads ends the stream."""
HEARTBEAT = 15.0
"""Seconds without a sent frame after which a heartbeat is sent."""
SILENCE = 45.0
"""Seconds without a received message, or in which the other side reads nothing, after which the stream ends."""
HELLO_TIMEOUT = 10.0
"""Seconds that the other side has for its hello."""
SLICE = 16
"""Frames handled at a time. Their answers can be sent while the rest of the message is handled."""
CHECK_EVERY = 5.0
"""Seconds between two checks for heartbeats and silence."""
LEAVE_TIMEOUT = 5.0
"""Seconds that the other side has to read the last frames after end(None)."""
END_TIMEOUT = 2.0
"""Seconds in which the queued frames may still be sent after end()."""
_ANSWER_OVERHEAD = 256  # bytes of memory that a waiting answer takes beside its own


class Duplex(Protocol):
    """The call under a FrameStream: a grpc.aio servicer context, a DialledStream, or one end of testing.stream_pair().

    The end that may close its direction has an async method `done_writing`, too.
    """

    async def read(self) -> Any:
        """Returns the next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Sends a serialized message."""


class OutgoingFrames:
    """The frames that wait to be sent, in the order in which they go out. No I/O and no clock."""

    __slots__ = ("_events", "_frames", "answer_bytes", "event_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, int]] = deque()
        """Each frame with the bytes that it counts as an answer; 0 for other frames."""
        self._events: deque[tuple[bytes, int]] = deque()
        self.answer_bytes = 0
        """Bytes of the waiting answers, with their overhead."""
        self.event_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames or self._events)

    def add(self, frame: bytes, *, answer: bool = False) -> None:
        """Queues a frame before all events. The bytes of an answer count in `answer_bytes`."""
        size = len(frame) + _ANSWER_OVERHEAD if answer else 0
        self._frames.append((frame, size))
        self.answer_bytes += size

    def add_event(self, frame: bytes) -> None:
        """Queues a frame behind all others."""
        self._events.append((frame, 0))
        self.event_bytes += len(frame)

    def batch(self) -> list[bytes]:
        """Removes and returns the frames of the next message: at most MAX_FRAMES and MAX_BATCH_BYTES, at least one."""
        batch: list[bytes] = []
        size = 0
        for queue in (self._frames, self._events):
            while queue and len(batch) < MAX_FRAMES and (not batch or size + len(queue[0][0]) <= MAX_BATCH_BYTES):
                frame, answer = queue.popleft()
                batch.append(frame)
                size += len(frame)
                self.answer_bytes -= answer
                if queue is self._events:
                    self.event_bytes -= len(frame)
            if queue:
                break
        return batch


class FrameStream:
    """Frames over a Duplex, from the hello to the end.

    With `waits` this side does not read on while its answers wait; the other side has to read always.
    """

    def __init__(self, call: Duplex, heartbeat: bytes, *, waits: bool) -> None:
        self._call = call
        self._heartbeat = heartbeat
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._outgoing = OutgoingFrames()
        self._batch_taken = asyncio.Event()
        self._frames_added = asyncio.Event()
        self._reading_paused = self._writing = self._finishing = self._discarding = False
        self._ended: asyncio.Future[CallError | None] = self._loop.create_future()
        self._received_at = self._sent_at = self._loop.time()
        self._first_frames: list[Any] = []

    def send(self, frame: bytes) -> None:
        """Sends a frame with the next message."""
        self._outgoing.add(frame)
        self._frames_added.set()

    def answer(self, frame: bytes) -> None:
        """Sends a frame that the other side asked for. Such frames are bounded: see ANSWER_LIMIT and MAX_ANSWERS."""
        self._outgoing.add(frame, answer=True)
        self._frames_added.set()

    def send_event(self, frame: bytes) -> None:
        """Sends a frame after all others. Await event_space() before."""
        self._outgoing.add_event(frame)
        self._frames_added.set()

    async def event_space(self) -> None:
        """Waits until another event may be sent."""
        while self._outgoing.event_bytes >= EVENT_LIMIT:
            await self._next_batch()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the answers and events that wait to be sent."""
        return self._outgoing.answer_bytes + self._outgoing.event_bytes

    def end(self, error: CallError | None) -> None:
        """Makes run() return `error` after the queued frames have been sent; for None, after they have been read."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def hello(self, *, opener: bool) -> Any:
        """Returns the other side's hello. The opener's hello is alone in its message.

        Raises InvalidArgument for any other first frame and after HELLO_TIMEOUT, Unavailable when the stream ends
        before it.
        """
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                message = await self._call.read()
        except TimeoutError:
            raise InvalidArgument("hello", f"did not come within {HELLO_TIMEOUT:g} s") from None
        if message is grpc.aio.EOF:
            raise Unavailable("the stream ended before a hello")
        frames = decoded(message).frames
        if not frames or frames[0].WhichOneof("frame") != "hello":
            raise InvalidArgument("hello", "is missing: it is the first frame")
        _check_count(frames)
        if opener and len(frames) > 1:
            raise InvalidArgument("hello", "nothing follows it before the other side's hello has come")
        self._first_frames = frames[1:]
        return frames[0].hello

    async def greet(self, frame: bytes) -> None:
        """Sends a hello at once, in a message of its own."""
        await self._call.write(frame)

    async def run(self, handlers: dict[str, Callable[[Any], None]]) -> CallError | None:
        """Sends and receives frames until the stream ends.

        `handlers` get the received frames, by kind; an exception of a handler ends the stream. Returns the error that
        end() was called with, None after end(None) and when the other side half-closed. Raises the CallError that the
        other side or the connection ended the stream with.
        """
        reader: asyncio.Future[None] = child(READ, self._read(handlers))
        writer: asyncio.Future[None] = child(WRITE, self._write())
        beat: asyncio.Future[None] = child(BEAT, self._beat())
        try:
            await asyncio.wait((reader, writer, beat, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if beat.done() and beat.exception() is not None:
                self.end(Internal("the stream is not watched any more; see the log"))
            if self._ended.done() and not writer.done():
                self._finishing = True
                self._frames_added.set()
            if not reader.done():  # the writer sends the last frames, or the reader learns why the writer failed
                limit = LEAVE_TIMEOUT if self._leaving else END_TIMEOUT
                await asyncio.wait({writer if self._ended.done() else reader}, timeout=limit)
            if self._leaving and writer.done():
                await self._wait_until_read(reader)
        finally:
            for task in (reader, writer, beat):
                task.cancel()
            await asyncio.gather(reader, writer, beat, return_exceptions=True)
        for task in (reader, beat, writer):
            if task is writer and self._ended.done():
                return self._ended.result()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return None

    @property
    def _leaving(self) -> bool:
        return self._ended.done() and self._ended.result() is None

    async def _wait_until_read(self, reader: "asyncio.Future[None]") -> None:
        """Waits until the other side has read the last frame: cancelling a call drops its unread messages.

        A servicer's context cannot half-close: its call ends when the method returns, and drops nothing.
        """
        done_writing = getattr(self._call, "done_writing", None)
        if done_writing is not None and not reader.done():
            self._discarding = True  # the answers to frames that arrive now could not be sent
            await done_writing()
            await asyncio.wait({reader}, timeout=LEAVE_TIMEOUT)

    async def _next_batch(self) -> None:
        self._batch_taken.clear()
        await self._batch_taken.wait()

    async def _read(self, handlers: dict[str, Callable[[Any], None]]) -> None:
        self._handle(self._first_frames, handlers)
        while True:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                return
            if self._discarding:
                continue
            self._received_at = self._loop.time()
            frames = decoded(message).frames
            _check_count(frames)
            for start in range(0, len(frames), SLICE):
                if start:
                    await asyncio.sleep(0)
                self._handle(frames[start : start + SLICE], handlers)
                if self._outgoing.answer_bytes > ANSWER_LIMIT:
                    await self._check_answers()

    async def _check_answers(self) -> None:
        """Waits until the other side has read answers. A side that always reads raises ResourceExhausted instead."""
        if not self._waits:
            if self._outgoing.answer_bytes > MAX_ANSWERS:
                raise ResourceExhausted(f"answers of {self._outgoing.answer_bytes} bytes wait to be read")
            return
        self._reading_paused = True
        while self._outgoing.answer_bytes > ANSWER_LIMIT:
            await self._next_batch()
        self._reading_paused = False

    def _handle(self, frames: Iterable[Any], handlers: dict[str, Callable[[Any], None]]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            handle = handlers.get(kind)
            if handle is None:
                raise InvalidArgument(f"frames.{kind or 'frame'}", "is no frame that is known or wanted here")
            handle(getattr(frame, kind))

    async def _write(self) -> None:
        while True:
            if not self._outgoing:
                if self._finishing:
                    return
                self._frames_added.clear()
                await self._frames_added.wait()
                continue
            await asyncio.sleep(0)  # tasks that are ready may add frames to this message
            self._sent_at = self._loop.time()
            batch = self._outgoing.batch()
            self._batch_taken.set()
            self._writing = True
            await self._call.write(b"".join(batch))
            self._writing = False
            if self._reading_paused:  # silence does not count while this side does not read
                self._received_at = self._loop.time()

    async def _beat(self) -> None:
        """Sends heartbeats, and ends the stream when the other side is silent or does not read."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            now = self._loop.time()
            if now - self._received_at > SILENCE:
                self.end(Unavailable(f"nothing was heard for {SILENCE:g} s"))
            elif self._writing and now - self._sent_at > SILENCE:
                self.end(Unavailable(f"nothing was read for {SILENCE:g} s"))
            elif not self._writing and now - self._sent_at >= HEARTBEAT:
                self.send(self._heartbeat)


def _check_count(frames: Any) -> None:
    if len(frames) > MAX_FRAMES:
        raise InvalidArgument("frames", f"are {len(frames)}, more than {MAX_FRAMES}")
