"""One stream of an attachment. FrameStream sends frames in batches, calls a handler for each received frame, and sends
heartbeats.

A message has as many waiting frames as MAX_FRAMES and MAX_BATCH_BYTES allow. No timer delays a message. Event frames
are sent after all other frames. The trainer and the server use the same class. It sends frames as bytes and receives
frames as protobuf messages.

The number of waiting frames is bounded, even if the other side never reads. Each side grants the other side a window,
which is the most rollouts or chats that may be open. The windows bound the requests. EVENT_LIMIT bounds the events.
The other side can ask for answers without end, so ANSWER_LIMIT and MAX_ANSWERS bound the answers.

The trainer stops reading while more than ANSWER_LIMIT bytes of its answers wait. If the server also stopped reading,
both sides would wait for each other for ever. So the server always reads. It ends the stream when more than MAX_ANSWERS
bytes of its answers wait. A trainer that respects its windows never asks for so many answers. A stream also ends when
the other side reads nothing for SILENCE seconds.
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
"""A message has at most this many frames."""
MAX_BATCH_BYTES = 1024 * 1024
"""A message has at most this many bytes. A single larger frame is a message of its own."""
EVENT_LIMIT = 4 * 1024 * 1024
"""event_space() waits while this many bytes of events, or more, wait to be sent."""
ANSWER_LIMIT = 4 * 1024 * 1024
"""While more than this many bytes of answers wait to be sent, a side with `waits` reads nothing (see FrameStream)."""
MAX_ANSWERS = 64 * 1024 * 1024
"""When more than this many bytes of answers wait to be sent, a side without `waits` ends the stream."""
HEARTBEAT = 15.0
"""When this side has sent nothing for this many seconds, it sends a heartbeat."""
SILENCE = 45.0
"""When the other side sends nothing or reads nothing for this many seconds, the stream ends."""
HELLO_TIMEOUT = 10.0
"""hello() waits at most this many seconds for the other side's hello."""
SLICE = 16
"""After each slice of this many frames of a received message, other tasks run.

So the answers to the first frames are sent before the last frames are handled.
"""
CHECK_EVERY = 5.0
"""The stream checks every this many seconds whether a heartbeat is due and whether the other side is silent."""
LEAVE_TIMEOUT = 5.0
"""After end(None), run() waits at most this many seconds until it has sent the last frames.

After that, it waits at most this many seconds until the other side has read these frames.
"""
END_TIMEOUT = 2.0
"""After end() with an error, run() waits at most this many seconds until it has sent the queued frames.

After a failed write, run() waits at most this many seconds for the error of the call.
"""
_ANSWER_OVERHEAD = 256  # bytes of memory that a waiting answer takes in addition to its own bytes


class Duplex(Protocol):
    """The call under a FrameStream: a grpc.aio servicer context, a DialledStream, or one end of testing.stream_pair().

    A Duplex that can half-close the call also has an async method `done_writing`.
    """

    async def read(self) -> Any:
        """Returns the next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Sends a serialized message."""


class OutgoingFrames:
    """The frames that wait to be sent, in the order of sending. This class does no I/O and reads no clock."""

    __slots__ = ("_events", "_frames", "answer_bytes", "event_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, int]] = deque()
        """Each frame, and the number that the frame adds to `answer_bytes`. A frame that is no answer adds 0."""
        self._events: deque[tuple[bytes, int]] = deque()
        self.answer_bytes = 0
        """The bytes of the waiting answers. An answer counts as the bytes of its frame plus _ANSWER_OVERHEAD."""
        self.event_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames or self._events)

    def add(self, frame: bytes, *, answer: bool = False) -> None:
        """Queues a frame that is sent before all events. With `answer`, the frame counts in `answer_bytes`."""
        size = len(frame) + _ANSWER_OVERHEAD if answer else 0
        self._frames.append((frame, size))
        self.answer_bytes += size

    def add_event(self, frame: bytes) -> None:
        """Queues an event frame, which is sent after all other frames."""
        self._events.append((frame, 0))
        self.event_bytes += len(frame)

    def batch(self) -> list[bytes]:
        """Removes the frames of the next message from the queues, and returns them.

        The limits are MAX_FRAMES and MAX_BATCH_BYTES. If the first frame alone has more bytes, it is returned alone.
        """
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
    """Sends and receives frames over a Duplex, from the hello to the end of the stream.

    With `waits`, this side stops reading while more than ANSWER_LIMIT bytes of its answers wait. Without `waits`, this
    side always reads. At least one of the two sides must always read.
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
        """Queues a frame, which is sent before all events."""
        self._outgoing.add(frame)
        self._frames_added.set()

    def answer(self, frame: bytes) -> None:
        """Queues an answer to a frame of the other side. ANSWER_LIMIT and MAX_ANSWERS bound the answers."""
        self._outgoing.add(frame, answer=True)
        self._frames_added.set()

    def send_event(self, frame: bytes) -> None:
        """Queues an event frame, which is sent after all other frames. Await event_space() first."""
        self._outgoing.add_event(frame)
        self._frames_added.set()

    async def event_space(self) -> None:
        """Waits until fewer than EVENT_LIMIT bytes of events wait."""
        while self._outgoing.event_bytes >= EVENT_LIMIT:
            await self._next_batch()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the answers and events that wait to be sent."""
        return self._outgoing.answer_bytes + self._outgoing.event_bytes

    def end(self, error: CallError | None) -> None:
        """Makes run() return `error` after the queued frames have been sent.

        For None, run() also waits until the other side has read these frames. A second call does nothing.
        """
        if not self._ended.done():
            self._ended.set_result(error)

    async def hello(self, *, opener: bool) -> Any:
        """Reads the first message, and returns the other side's hello.

        The first frame of this message must be a hello, and the message has at most MAX_FRAMES frames. With `opener`,
        the other side has opened the call, and the hello must be the only frame. Raises InvalidArgument if the message
        breaks a rule, or if it does not come within HELLO_TIMEOUT seconds. Raises Unavailable if the stream ends before
        the hello.
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
            raise InvalidArgument("hello", "is missing; the first frame must be a hello")
        _check_count(frames)
        if opener and len(frames) > 1:
            raise InvalidArgument(
                "hello", "is not alone in its message; send the other frames after the other side's hello"
            )
        self._first_frames = frames[1:]
        return frames[0].hello

    async def greet(self, frame: bytes) -> None:
        """Sends this side's hello at once, in a message of its own."""
        await self._call.write(frame)

    async def run(self, handlers: dict[str, Callable[[Any], None]]) -> CallError | None:
        """Sends and receives frames until the stream ends.

        `handlers` maps each kind of frame to the function that gets the received frames of this kind. The function for
        the kind "" gets the whole frame, which has no kind or a kind of a later version. An exception of a
        handler ends the stream, and run() raises it. Returns the argument of end(), or None when the other side
        half-closed. Raises a CallError when the other side or the connection ended the stream with an error.
        """
        reader: asyncio.Future[None] = child(READ, self._read(handlers))
        writer: asyncio.Future[None] = child(WRITE, self._write())
        beat: asyncio.Future[None] = child(BEAT, self._beat())
        try:
            await asyncio.wait((reader, writer, beat, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if beat.done() and beat.exception() is not None:
                self.end(Internal("the task that sends heartbeats has failed; the log says why"))
            if self._ended.done() and not writer.done():
                self._finishing = True
                self._frames_added.set()
            # After end() the writer sends the last frames. After a failed write the reader gets the call's error.
            if not reader.done():
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
        """Half-closes the call, and waits until the other side has read the last frame.

        If the call were cancelled earlier, the unread messages would be lost. A servicer's context cannot half-close.
        Its call ends when the RPC's handler returns, and no message is lost then. So there is no wait for a servicer.
        """
        done_writing = getattr(self._call, "done_writing", None)
        if done_writing is not None and not reader.done():
            self._discarding = True  # frames that arrive now are dropped, because their answers could not be sent
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
        """Waits until at most ANSWER_LIMIT bytes of answers wait to be sent.

        On a side without `waits`, this method does not wait. If more than MAX_ANSWERS bytes wait to be sent, it raises
        ResourceExhausted.
        """
        if not self._waits:
            if self._outgoing.answer_bytes > MAX_ANSWERS:
                raise ResourceExhausted(
                    f"{self._outgoing.answer_bytes} bytes of answers wait to be read, more than {MAX_ANSWERS}"
                )
            return
        self._reading_paused = True
        while self._outgoing.answer_bytes > ANSWER_LIMIT:
            await self._next_batch()
        self._reading_paused = False

    def _handle(self, frames: Iterable[Any], handlers: dict[str, Callable[[Any], None]]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            handle = handlers.get(kind or "")
            if handle is None:
                raise InvalidArgument(f"frames.{kind or 'frame'}", "is not a kind of frame that this side accepts")
            handle(getattr(frame, kind) if kind else frame)

    async def _write(self) -> None:
        while True:
            if not self._outgoing:
                if self._finishing:
                    return
                self._frames_added.clear()
                await self._frames_added.wait()
                continue
            await asyncio.sleep(0)  # tasks that are ready can add frames to this message
            self._sent_at = self._loop.time()
            batch = self._outgoing.batch()
            self._batch_taken.set()
            self._writing = True
            await self._call.write(b"".join(batch))
            self._writing = False
            if self._reading_paused:  # this side reads nothing now, so the finished write is the sign of life
                self._received_at = self._loop.time()

    async def _beat(self) -> None:
        """Sends heartbeats, and ends the stream when the other side is silent or does not read."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            now = self._loop.time()
            if now - self._received_at > SILENCE:
                self.end(Unavailable(f"the other side sent nothing for {SILENCE:g} s"))
            elif self._writing and now - self._sent_at > SILENCE:
                self.end(Unavailable(f"the other side read nothing for {SILENCE:g} s"))
            elif not self._writing and now - self._sent_at >= HEARTBEAT:
                self.send(self._heartbeat)


def _check_count(frames: Any) -> None:
    if len(frames) > MAX_FRAMES:
        text = f"a message has {len(frames)} frames, more than {MAX_FRAMES}"
        raise InvalidArgument("frames", text, reason="MALFORMED_FRAME")
