"""One stream of an attachment: frames out in batches, frames in one by one, signs of life.

Whatever waits goes out in one message; there is no timer to wait for more. Frames of events
wait behind all others. Bytes in, messages out: which of the two sides this is, it does not know.

What waits is bounded also where the other side never reads: requests by the windows, events by
their room, and answers, of which it could cause any number, here. One side, the trainer, does not
read on while its answers wait. The other always reads, so those answers do get out and the first
reads again: two that waited for one another would do so for ever. What the second may owe is
limited instead, far above what windows let an honest trainer ask at once, and more ends the stream.
Nothing taken at all for as long as a silence may last ends it, too.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import grpc

from osmosis_grpc.errors import CallError, Cancelled, Internal, InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.link.call_metrics import Call, CallSink
from osmosis_grpc.link.channel_options import client_options
from osmosis_grpc.link.client_calls import error_of
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.link.handlers import decode_or_mark, decoded
from osmosis_grpc.supervise import OnFailure, child, job

READ = job("link.read_stream", OnFailure.RAISE)
WRITE = job("link.write_stream", OnFailure.RAISE)
BEAT = job("link.watch_stream", OnFailure.RAISE)

MAX_FRAMES = 4096
"""Frames of a message."""
MAX_BATCH_BYTES = 1024 * 1024
"""Bytes of a message, unless it is one larger frame."""
EVENT_ROOM = 4 * 1024 * 1024
"""While fewer bytes of events wait, there is room for more."""
ANSWER_ROOM = 4 * 1024 * 1024
"""While more bytes of answers wait, the side that waits reads nothing."""
MAX_ANSWERS = 64 * 1024 * 1024
"""Bytes of answers that may wait at the side that always reads."""
HEARTBEAT = 15.0
"""Seconds without a frame of our own, after which a heartbeat goes out."""
SILENCE = 45.0
"""Seconds without a frame of the other side's, or in which it takes none, after which the stream is dead."""
HELLO_LIMIT = 10.0
"""Seconds that the other side has for its hello."""
SLICE = 16
"""Frames handled at a time: what comes of them can go out while the rest is handled."""
HEARTBEAT_INTERVAL = 5.0
_COST = 256  # bytes that a waiting answer takes beside its own
_LAST_WORDS = 2.0  # seconds in which what is queued may still go out
PARTING = 5.0
"""Seconds that the other side has to read the last frames of a side that leaves in good order."""


class Duplex(Protocol):
    """What a stream runs over: a grpc.aio servicer context, or the Dialled below."""

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send a message that is bytes already."""


class Dialled:
    """The caller's side of a stream call, as a Duplex: an async context, over a connection of its own.

    A connection that has died silently would carry the next stream, too. Raises Unavailable when
    a file that it needs for TLS cannot be read now.
    """

    def __init__(
        self, target: str, method: str, answers: Any, credentials: Credentials, calls: CallSink | None = None
    ) -> None:
        try:
            self._channel = credentials.channel(target, client_options(grpc__use_local_subchannel_pool=1))
        except ValueError as error:
            raise Unavailable(str(error)) from None
        self._call: Any = self._channel.stream_stream(method)(metadata=credentials.metadata or None)
        self._decode: Callable[[bytes], Any] = decode_or_mark(answers.FromString) or bytes
        self._measured = Call(calls, method.lstrip("/"))

    async def __aenter__(self) -> "Dialled":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        ended = self._call.done()
        self._call.cancel()
        self._measured.end((await self._call.code()).name if ended else "CANCELLED")
        await self._channel.close()

    async def done_writing(self) -> None:
        """Say that nothing more comes: the other side ends the call, once it has read everything."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()

    async def read(self) -> Any:
        """See Duplex. Raises a CallError when the call ended badly."""
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.CancelledError:
            if self._call.cancelled() and not _cancelled_here():
                raise Cancelled("the other side cancelled the stream") from None
            raise
        if data is grpc.aio.EOF:
            return data
        self._measured.received += len(data)
        return self._decode(data)

    async def write(self, message: bytes) -> None:
        """See Duplex."""
        self._measured.sent += len(message)
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.InvalidStateError:
            raise Unavailable("the stream has ended") from None


class FrameStream:
    """Frames over a Duplex, from the first to the last.

    `waits` says that this side does not read on while its answers wait; the other side always reads.
    """

    def __init__(self, call: Duplex, heartbeat: bytes, *, waits: bool) -> None:
        self._call = call
        self._heartbeat = heartbeat
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._frames: deque[bytes] = deque()
        self._frames_in = self._frames_out = 0
        self._answers: deque[tuple[int, int]] = deque()
        """The place of each answer that waits, and its bytes."""
        self._answer_bytes = 0
        self._answered = asyncio.Event()
        self._holding = self._writing = False
        self._events: deque[bytes] = deque()
        self._event_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._idle: asyncio.Future[None] | None = None
        self._finishing = self._deaf = False
        self._ended: asyncio.Future[Any] = self._loop.create_future()
        self._heard = self._sent = self._loop.time()
        self._early: list[Any] = []

    def send(self, frame: bytes) -> None:
        """Send a frame with the next message."""
        self._frames.append(frame)
        self._frames_in += 1
        self._wake()

    def answer(self, frame: bytes) -> None:
        """Send a frame that the other side asked for, and could ask for without end."""
        size = len(frame) + _COST
        self._answers.append((self._frames_in, size))
        self._answer_bytes += size
        self.send(frame)

    def send_event(self, frame: bytes) -> None:
        """Send a frame after all others; ask for room() before."""
        self._events.append(frame)
        self._event_bytes += len(frame)
        if self._event_bytes >= EVENT_ROOM:
            self._room.clear()
        self._wake()

    async def room(self) -> None:
        """Wait until there is room for another event."""
        while self._event_bytes >= EVENT_ROOM:  # others wait, too, and may have filled it again
            await self._room.wait()

    def end(self, error: CallError) -> None:
        """Let run() raise this, once what is queued has gone out."""
        if not self._ended.done():
            self._ended.set_result(error)

    def leave(self) -> None:
        """Let run() return None, once what is queued has gone out and the other side has read it."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def hello(self, *, opener: bool) -> Any:
        """The other side's hello. Its opener's is alone in its message: nothing comes before both hellos.

        Raises InvalidArgument, Unavailable.
        """
        try:
            async with asyncio.timeout(HELLO_LIMIT):
                message = await self._call.read()
        except TimeoutError:
            raise InvalidArgument("hello", f"did not come within {HELLO_LIMIT:g} s") from None
        if message is grpc.aio.EOF:
            raise Unavailable("the stream ended before a hello")
        frames = decoded(message).frames
        if not frames or frames[0].WhichOneof("frame") != "hello":
            raise InvalidArgument("hello", "is missing: it is the first frame")
        _check_count(frames)
        if opener and len(frames) > 1:
            raise InvalidArgument("hello", "nothing follows it before the other side's hello has come")
        self._early = frames[1:]
        return frames[0].hello

    async def greet(self, frame: bytes) -> None:
        """Send a hello by itself, at once."""
        await self._call.write(frame)

    async def run(self, handlers: dict[str, Callable[[Any], None]]) -> CallError | None:
        """Carry frames until the stream ends. Returns why it ended from our side, None when the other side left.

        `handlers` take the frames by kind; what they raise ends the stream. Raises the CallError
        that the other side, or the way to it, ended the stream with.
        """
        reader: asyncio.Future[None] = child(READ, self._read(handlers))
        writer: asyncio.Future[None] = child(WRITE, self._write())
        beat: asyncio.Future[None] = child(BEAT, self._beat())
        try:
            await asyncio.wait((reader, writer, beat, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if beat.done() and beat.exception() is not None:
                self.end(Internal("the stream is not watched any more; the log tells more"))
            if self._ended.done() and not writer.done():
                self._finishing = True
                self._wake()
            if not reader.done():  # the writer has its last words, or the reader knows why it failed
                limit = PARTING if self._parts else _LAST_WORDS
                await asyncio.wait({writer if self._ended.done() else reader}, timeout=limit)
            if self._parts and writer.done():
                await self._wait_until_read(reader)
        finally:
            for task in (reader, writer, beat):
                task.cancel()
            await asyncio.gather(reader, writer, beat, return_exceptions=True)
        if reader.done() and not reader.cancelled() and reader.exception() is not None:
            raise reader.exception()  # type: ignore[misc]
        if not beat.cancelled() and beat.exception() is not None:
            raise beat.exception()  # type: ignore[misc]
        if self._ended.done():
            ended: CallError | None = self._ended.result()
            return ended
        if not writer.cancelled() and writer.exception() is not None:
            raise writer.exception()  # type: ignore[misc]
        return None

    @property
    def _parts(self) -> bool:
        return self._ended.done() and self._ended.result() is None

    async def _wait_until_read(self, reader: "asyncio.Future[None]") -> None:
        """Wait until the other side has read the last frame: to cancel a call drops what is not read.

        A servicer's call ends when its method returns, and drops nothing.
        """
        if isinstance(self._call, Dialled) and not reader.done():
            self._deaf = True  # an answer to what comes now would find no way out
            await self._call.done_writing()
            await asyncio.wait({reader}, timeout=PARTING)

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _read(self, handlers: dict[str, Callable[[Any], None]]) -> None:
        self._handle(self._early, handlers)
        while True:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                return
            if self._deaf:
                continue
            self._heard = self._loop.time()
            frames = decoded(message).frames
            _check_count(frames)
            for start in range(0, len(frames), SLICE):
                if start:
                    await asyncio.sleep(0)
                self._handle(frames[start : start + SLICE], handlers)
                if self._answer_bytes > ANSWER_ROOM:
                    await self._check_answers()

    async def _check_answers(self) -> None:
        """Wait until the other side has taken answers, or end the stream of one that does not."""
        if not self._waits:
            if self._answer_bytes > MAX_ANSWERS:
                raise ResourceExhausted(f"answers of {self._answer_bytes} bytes wait to be read")
            return
        self._holding = True
        while self._answer_bytes > ANSWER_ROOM:
            self._answered.clear()
            await self._answered.wait()
        self._holding = False

    def _handle(self, frames: Iterable[Any], handlers: dict[str, Callable[[Any], None]]) -> None:
        for frame in frames:
            kind = frame.WhichOneof("frame")
            handle = handlers.get(kind)
            if handle is None:
                raise InvalidArgument(f"frames.{kind or 'frame'}", "is no frame that is known or wanted here")
            handle(getattr(frame, kind))

    async def _write(self) -> None:
        while True:
            if not self._frames and not self._events:
                if self._finishing:
                    return
                self._idle = self._loop.create_future()
                await self._idle
                self._idle = None
                continue
            await asyncio.sleep(0)  # what is ready to run may have frames to add
            self._sent = self._loop.time()
            self._writing = True
            await self._call.write(b"".join(self._batch()))
            self._writing = False
            if self._holding:  # what was said meanwhile was not listened to
                self._heard = self._loop.time()

    def _batch(self) -> list[bytes]:
        """What goes out in the next message."""
        batch: list[bytes] = []
        size = 0
        for queue in (self._frames, self._events):
            while queue and len(batch) < MAX_FRAMES and (not batch or size + len(queue[0]) <= MAX_BATCH_BYTES):
                frame = queue.popleft()
                batch.append(frame)
                size += len(frame)
                if queue is self._events:
                    self._event_bytes -= len(frame)
                else:
                    self._frames_out += 1
            if queue:
                break
        while self._answers and self._answers[0][0] < self._frames_out:
            self._answer_bytes -= self._answers.popleft()[1]
        if self._answer_bytes <= ANSWER_ROOM:
            self._answered.set()
        if self._event_bytes < EVENT_ROOM:
            self._room.set()
        return batch

    async def _beat(self) -> None:
        """Send heartbeats, and end the stream when the other side is silent."""
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            now = self._loop.time()
            if now - self._heard > SILENCE:
                self.end(Unavailable(f"nothing was heard for {SILENCE:g} s"))
            elif self._writing and now - self._sent > SILENCE:
                self.end(Unavailable(f"nothing was read for {SILENCE:g} s"))
            elif not self._writing and now - self._sent >= HEARTBEAT:
                self.send(self._heartbeat)


def _check_count(frames: Any) -> None:
    if len(frames) > MAX_FRAMES:
        raise InvalidArgument("frames", f"are {len(frames)}, more than {MAX_FRAMES}")


def _cancelled_here() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def redial(
    connect: Callable[[], Awaitable[CallError | None]],
    ended: Callable[[CallError | None, float], None],
    *,
    pauses: tuple[float, float] = (0.25, 10.0),
    lasted: float = 1.0,
) -> None:
    """Connect again and again, without end: pauses grow from the first to the last, jittered.

    `connect` runs a stream to its end; `ended` learns how it ended and how long the pause is. What `connect` raises
    beside a CallError is a mistake of this side: redial raises it, and the supervisor of this job starts it again.
    """
    loop, pause = asyncio.get_running_loop(), pauses[0]
    while True:
        began = loop.time()
        try:
            error = await connect()
        except CallError as raised:
            error = raised
        except Exception as mistake:
            ended(Internal(f"this side broke off the stream: {type(mistake).__name__}: {mistake}"), pause)
            raise
        if loop.time() - began > lasted:
            pause = pauses[0]
        ended(error, pause)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pauses[1], pause * 2)
