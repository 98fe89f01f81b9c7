"""One stream of an attachment over a call. FrameStream reads, writes and waits for timers.

All rules are in StreamMachine (stream_machine.py): batches, limits, hellos, heartbeats and the end of a stream.
While frames wait to be handled, the next message is already read, because its chats are handled first.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import grpc

from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.protocol.stream.stream_machine import State, StreamMachine
from osmosis_grpc.supervise import OnFailure, child, job

READ = job("link.read_stream", OnFailure.RAISE)
HANDLE = job("link.handle_frames", OnFailure.RAISE)
WRITE = job("link.write_stream", OnFailure.RAISE)
WATCH = job("link.watch_stream", OnFailure.RAISE)

PAUSE = 0.0004
"""After a message, the next one waits this many seconds for each frame except the first.

Each message takes the other side two to three iterations of its event loop. If both sides are busy, a few large
messages arrive sooner than many small messages. A message of one frame has no pause after it.
"""
LONGEST_PAUSE = 0.003
"""The most seconds that the next message waits."""
READ_STEPS = 2
"""While iterations of the event loop are long, a message that has arrived is usually read within this many of them."""

Handlers = Mapping[str, Callable[[Any], None]]
"""For each kind of frame, the function that gets the received frames of this kind."""


class Duplex(Protocol):
    """The call under a FrameStream: a grpc.aio servicer context, a DialledStream, or one end of testing.stream_pair().

    A Duplex that can half-close the call also has an async method `done_writing`.
    """

    @property
    def sent(self) -> int:
        """The bytes of the messages that were written."""

    @property
    def received(self) -> int:
        """The bytes of the messages that were read."""

    async def read(self) -> Any:
        """Return the next message, or grpc.aio.EOF."""

    async def write(self, message: bytes) -> None:
        """Send a serialized message."""


class FrameStream:
    """Sends and receives frames over a Duplex, from the hello to the end of the stream.

    `heartbeat` and `waits` are those of StreamMachine.
    """

    def __init__(self, call: Duplex, heartbeat: bytes, *, waits: bool) -> None:
        self._call = call
        self._time = asyncio.get_running_loop().time
        self._done_writing = getattr(call, "done_writing", None)
        half_closes = self._done_writing is not None
        self._machine = StreamMachine(heartbeat, waits=waits, half_closes=half_closes, now=self._time())
        self._counted = 0
        """The value of `received` at the newest message that the machine has."""
        self._earliest = 0.0
        """The earliest time of the next message."""
        self._read_steps = 0
        """_handle() leaves frames that can wait for this many more iterations of the event loop."""
        self._batch_taken = asyncio.Event()
        self._frames_added = asyncio.Event()
        self._frames_wait = asyncio.Event()
        self._handled = asyncio.Event()
        self._state_changed = asyncio.Event()
        self._ended = asyncio.Event()

    def send(self, frame: bytes) -> None:
        """Queue a frame, which is sent before all events."""
        self._machine.send(frame)
        self._frames_added.set()

    def answer(self, frame: bytes) -> None:
        """Queue an answer to a frame of the other side. ANSWER_LIMIT and MAX_ANSWERS bound the answers."""
        self._machine.answer(frame)
        self._frames_added.set()
        if self._machine.state is State.ENDED:
            self._notice()

    def send_event(self, frame: bytes) -> None:
        """Queue an event frame, which is sent after all other frames. Await event_space() first."""
        self._machine.send_event(frame)
        self._frames_added.set()

    async def event_space(self) -> None:
        """Wait until fewer than EVENT_LIMIT bytes of events wait."""
        while self._machine.events_full:
            await self._next_batch()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the answers and events that wait to be sent."""
        return self._machine.outgoing.answer_bytes + self._machine.outgoing.event_bytes

    @property
    def sent(self) -> int:
        """The bytes of the messages that were sent."""
        return self._call.sent

    @property
    def received(self) -> int:
        """The bytes of the messages that were received."""
        return self._call.received

    def end(self, error: CallError | None) -> None:
        """End the stream with `error` after the queued frames have been sent. A second call does nothing.

        For None, run() also waits until the other side has read these frames.
        """
        self._machine.end(error, self._time())
        self._notice()

    def pace(self, interval: float, timeout: float) -> None:
        """Set the seconds until this side sends a heartbeat, and those until a silent stream ends."""
        self._machine.pace(interval, timeout, self._time())

    async def hello(self, *, opener: bool) -> Any:
        """Read the first message, and return the other side's hello.

        With `opener`, the other side has opened the call, and the hello must be alone in its message. Raises
        InvalidArgument if the message breaks a rule, or if it does not come within HELLO_TIMEOUT seconds. Raises
        Unavailable if the stream ends before the hello.
        """
        machine = self._machine
        machine.expect_hello(self._time(), alone=opener)
        try:
            async with asyncio.timeout_at(machine.timer):
                self._received(await self._call.read())
        except TimeoutError:
            machine.tick(machine.timer)
        if machine.failure is not None:
            raise machine.failure
        return machine.hello

    async def greet(self, frame: bytes) -> None:
        """Send this side's hello at once, in a message of its own."""
        self._machine.send(frame)
        message = self._machine.next_message(self._time())
        if message is not None:
            await self._call.write(message)
            self._machine.written(self._time())

    async def run(self, handlers: Handlers) -> CallError | None:
        """Send and receive frames until the stream ends.

        The handler of the kind "" gets the whole frame, which has no kind or a kind of a later version. An exception of
        a handler ends the stream, and run() raises it. Returns the argument of end(), or None when the other side
        half-closed. Raises a CallError when the other side or the connection ended the stream with an error.
        """
        machine = self._machine
        failed = (
            (child(READ, self._read(handlers)), machine.fail),
            (child(HANDLE, self._handle(handlers)), machine.fail),
            (child(WRITE, self._write()), lambda error: machine.write_failed(error, self._time())),
            (child(WATCH, self._watch()), machine.fail),
        )
        for task, fail in failed:
            task.add_done_callback(partial(self._task_ended, fail))
        try:
            await self._ended.wait()
        finally:
            for task, _ in failed:
                task.cancel()
            # gather() takes one step of the event loop more in Python 3.11 than in 3.12 if all tasks have ended.
            await asyncio.wait([task for task, _ in failed])
        if machine.failure is not None:
            raise machine.failure
        return machine.error

    def _task_ended(self, fail: Callable[[BaseException], None], task: "asyncio.Task[None]") -> None:
        """Pass the end of a task to the machine. gRPC cancels a read or a write if the call is cancelled."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fail(error)
        elif task.cancelled():
            self._machine.received_end()
        self._notice()

    def _notice(self) -> None:
        """Wake the tasks that depend on the state of the machine."""
        self._frames_added.set()
        self._state_changed.set()
        if self._machine.state is State.ENDED:
            self._ended.set()

    async def _next_batch(self) -> None:
        self._batch_taken.clear()
        await self._batch_taken.wait()

    def _received(self, message: Any) -> None:
        if message is grpc.aio.EOF:
            self._machine.received_end()
        else:
            size, self._counted = self._call.received - self._counted, self._call.received
            self._machine.receive(message, size, self._time())

    async def _read(self, handlers: Handlers) -> None:
        """Read messages, and handle the first frames of each message at once."""
        machine, message = self._machine, None
        while message is not grpc.aio.EOF and machine.state is not State.ENDED:
            if machine.paused:
                await self._next_batch()
            elif machine.incoming.full:
                await self._next_handled()
            else:
                message = await self._next_message()
                self._read_steps = READ_STEPS
                self._received(message)
                self._handle_some(handlers)

    async def _next_message(self) -> Any:
        """Return the next message, or EOF. The end or the error of the call comes after all received frames."""
        try:
            message = await self._call.read()
        except Exception:
            await self._all_handled()
            raise
        if message is grpc.aio.EOF:
            await self._all_handled()
        return message

    async def _handle(self, handlers: Handlers) -> None:
        """Handle the frames that _read() has left. Other tasks run in between, and the first answers are sent.

        If no chat is left, it waits for READ_STEPS iterations after each message. The next message may have chats,
        and they come first.
        """
        machine = self._machine
        while machine.state is not State.ENDED:
            if machine.paused:
                await self._next_batch()
            elif machine.frames_wait:
                if self._read_steps and not machine.incoming.chats_wait:
                    self._read_steps -= 1
                else:
                    self._handle_some(handlers)
                await asyncio.sleep(0)
            else:
                self._frames_wait.clear()
                await self._frames_wait.wait()

    def _handle_some(self, handlers: Handlers) -> None:
        """Handle the next frames. If a handler raises, no other frame is handled."""
        try:
            for kind, content in self._machine.next_frames(handlers):
                handlers[kind](content)
        except BaseException as error:
            self._machine.fail(error)
            raise
        self._handled.set()
        if self._machine.frames_wait:
            self._frames_wait.set()

    async def _next_handled(self) -> None:
        self._handled.clear()
        await self._handled.wait()

    async def _all_handled(self) -> None:
        while self._machine.frames_wait:
            await self._next_handled()

    async def _write(self) -> None:
        machine = self._machine
        while machine.state in (State.OPEN, State.FINISHING):
            if machine.state is State.OPEN and not machine.outgoing:
                self._frames_added.clear()
                await self._frames_added.wait()
                continue
            pause = self._earliest - self._time()
            if pause > 0 and machine.state is State.OPEN:
                await asyncio.sleep(pause)
            now = self._time()
            self._earliest = now + min(LONGEST_PAUSE, PAUSE * (len(machine.outgoing) - 1))
            message = machine.next_message(now)
            if message is not None:
                self._batch_taken.set()
                await self._call.write(message)
                machine.written(self._time())
        self._notice()
        if machine.state is State.HALF_CLOSED and self._done_writing is not None:
            await self._done_writing()

    async def _watch(self) -> None:
        machine = self._machine
        while machine.state is not State.ENDED:
            self._state_changed.clear()
            try:
                async with asyncio.timeout_at(machine.timer):
                    await self._state_changed.wait()
            except TimeoutError:
                machine.tick(max(machine.timer, self._time()))
                self._notice()
