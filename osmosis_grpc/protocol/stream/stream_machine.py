"""The rules of one stream of an attachment, without I/O, tasks or a clock.

A StreamMachine is one end of Attach or Accept. The trainer and the server use the same class. Its inputs are received
messages, frames to send, the ends of writes, and times. Its outputs are the frames to handle, the next message to send,
the next timer, and its state. FrameStream connects it to a call. A test can connect two machines with a list.

| state | received frames | frames to send | at the timer | when the other side closes its direction |
|---|---|---|---|---|
| HELLO | the first must be a hello | are sent | the stream ends with an error | the stream ends with an error |
| OPEN | are handled | are sent | a check of silence and heartbeat, CHECKS times in an interval | the stream ends |
| FINISHING | are handled | are sent; then HALF_CLOSED or ENDED | the stream ends | frames are still sent |
| HALF_CLOSED | are dropped | are dropped | the stream ends | the stream ends |
| BROKEN | are handled | are dropped | the stream ends with the write's error | the same |
| ENDED | are dropped | are dropped | nothing | nothing |

The number of waiting frames is bounded, even if the other side never reads. Each side grants the other side a window,
which is the most rollouts or chats that may be open. The windows bound the requests. EVENT_LIMIT bounds the events. The
other side can send requests endlessly, so ANSWER_LIMIT and MAX_ANSWERS bound the answers.

The trainer stops reading while more than ANSWER_LIMIT bytes of its answers wait. If the server also stopped reading,
both sides could wait for each other forever. So the server always reads, and ends the stream when more than MAX_ANSWERS
bytes of its answers wait. A trainer that respects its windows never causes so many answers. A stream also ends when the
other side reads nothing for the time of pace(), SILENCE seconds by default.
"""

from collections.abc import Container, Sequence
from enum import StrEnum
from math import inf
from typing import Any

from osmosis_grpc.protocol.errors import CallError, InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.stream.undecodable import decoded
from osmosis_grpc.protocol.stream.waiting_frames import MAX_FRAMES, OutgoingFrames, ReceivedFrames

EVENT_LIMIT = 4 * 1024 * 1024
"""`events_full` is true while at least this many bytes of events wait to be sent."""
ANSWER_LIMIT = 4 * 1024 * 1024
"""While more than this many bytes of answers wait to be sent, a side with `waits` handles and reads nothing."""
MAX_ANSWERS = 64 * 1024 * 1024
"""When more than this many bytes of answers wait to be sent, a side without `waits` ends the stream."""
HEARTBEAT = 15.0
"""When this side has sent nothing for this many seconds, it sends a heartbeat. pace() changes the time."""
SILENCE = 45.0
"""When the other side sends nothing or reads nothing for this many seconds, the stream ends. pace() changes it."""
HELLO_TIMEOUT = 10.0
"""The other side's hello must come within this many seconds."""
CHECKS = 3
"""The checks in each heartbeat interval: whether a heartbeat is due, and how long the other side is silent."""
LEAVE_TIMEOUT = 5.0
"""After end(None), the stream has this many seconds to send the last frames.

After that, the other side has this many seconds to read them.
"""
END_TIMEOUT = 2.0
"""After end() with an error, the stream has this many seconds to send the queued frames.

After a failed write, the error of the call has this many seconds to arrive.
"""


class State(StrEnum):
    """The states of a stream. The table at the top of this file describes them."""

    HELLO = "hello"
    OPEN = "open"
    FINISHING = "finishing"
    HALF_CLOSED = "half_closed"
    BROKEN = "broken"
    ENDED = "ended"


_SENDS = frozenset({State.HELLO, State.OPEN, State.FINISHING})
_HANDLES = frozenset({State.OPEN, State.FINISHING, State.BROKEN})
_RECEIVES = _HANDLES | {State.HELLO}


class StreamMachine:
    """One end of a stream, from the hello to the end. Times are seconds of any clock that never goes back.

    `heartbeat` is the frame of a heartbeat. With `waits`, this side stops reading while more than ANSWER_LIMIT bytes of
    its answers wait. Without `waits`, it always reads. At least one of the two sides must always read. `half_closes` is
    true if this side can close its direction of the call and keep the other. `now` is the time of the first use.

    Frames to send are bytes. Received messages are protobuf messages with a field `frames`.
    """

    __slots__ = (
        "_half_closes",
        "_heartbeat",
        "_hello_alone",
        "_interval",
        "_other_closed",
        "_received_at",
        "_sent_at",
        "_timeout",
        "_waits",
        "_writing",
        "error",
        "failure",
        "hello",
        "incoming",
        "outgoing",
        "state",
        "timer",
    )

    def __init__(self, heartbeat: bytes, *, waits: bool, half_closes: bool, now: float) -> None:
        self._heartbeat = heartbeat
        self._waits = waits
        self._half_closes = half_closes
        self._interval, self._timeout = HEARTBEAT, SILENCE
        self.state = State.OPEN
        self.timer = now + self._interval / CHECKS
        """Call tick() at this time. Infinite after the end."""
        self.error: CallError | None = None
        """The argument of end(), also for a silent peer. None before end()."""
        self.failure: BaseException | None = None
        """The error of the other side, of the connection, or of a handler, that ends the stream; None without one."""
        self.hello: Any = None
        """The other side's hello, after it has arrived."""
        self.outgoing = OutgoingFrames()
        """The frames that wait to be sent."""
        self.incoming = ReceivedFrames()
        """The frames that wait to be handled."""
        self._hello_alone = False
        self._received_at = self._sent_at = now
        self._writing = self._other_closed = False

    def pace(self, interval: float, timeout: float, now: float) -> None:
        """Set the seconds until this side sends a heartbeat, and those until a silent stream ends.

        They are `heartbeat_interval` and `heartbeat_timeout` of the server's Limits.
        """
        self._interval, self._timeout = interval, timeout
        if self.state is State.OPEN:
            self.timer = now + interval / CHECKS

    # Frames to send.

    def send(self, frame: bytes) -> None:
        """Queue a frame, which is sent before all events."""
        if self.state in _SENDS:
            self.outgoing.add(frame)

    def answer(self, frame: bytes) -> None:
        """Queue an answer to a frame of the other side.

        Ends the stream with ResourceExhausted if more than MAX_ANSWERS bytes of answers wait on a side without `waits`.
        """
        if self.state in _SENDS:
            self.outgoing.add(frame, answer=True)
            waiting = self.outgoing.answer_bytes
            if waiting > MAX_ANSWERS and not self._waits:
                self.fail(ResourceExhausted(f"{waiting} bytes of answers wait to be read, more than {MAX_ANSWERS}"))

    def send_event(self, frame: bytes) -> None:
        """Queue an event frame, which is sent after all other frames. Wait while `events_full`."""
        if self.state in _SENDS:
            self.outgoing.add_event(frame)

    @property
    def events_full(self) -> bool:
        """Whether EVENT_LIMIT bytes of events, or more, wait to be sent."""
        return self.outgoing.event_bytes >= EVENT_LIMIT

    def next_message(self, now: float) -> bytes | None:
        """Return the next message to write, or None. Call written() or write_failed() before the next call.

        After end(), None means that all frames were sent, and the state changes.
        """
        if self.state in _SENDS and self.outgoing:
            self._writing = True
            self._sent_at = now
            return b"".join(self.outgoing.batch())
        if self.state is State.FINISHING:
            self._all_sent(now)
        return None

    def written(self, now: float) -> None:
        """Record that the message has been written."""
        self._writing = False
        if self.paused:  # this side does not read now, so the finished write counts as a sign of life
            self._received_at = now

    def write_failed(self, error: BaseException, now: float) -> None:
        """Record a failed write. The stream ends with the error of the call, or else with this one."""
        self._writing = False
        if self.state is State.FINISHING:
            self._all_sent(now)
        elif self.state in _SENDS:
            self.state, self.failure, self.timer = State.BROKEN, error, now + END_TIMEOUT

    # What arrives.

    def expect_hello(self, now: float, *, alone: bool) -> None:
        """Accept only the other side's hello next. Call this before the first message arrives.

        With `alone`, the other side has opened the call, and its hello must be the only frame of the message. Otherwise
        other frames may follow the hello.
        """
        self.state, self.timer, self._hello_alone = State.HELLO, now + HELLO_TIMEOUT, alone

    def receive(self, message: Any, size: int, now: float) -> None:
        """Take a message of `size` bytes. Read no message while `paused`, or while `incoming` is full.

        Ends the stream with InvalidArgument if the message breaks a rule.
        """
        if self.state not in _RECEIVES:
            return
        self._received_at = now
        try:
            frames = decoded(message).frames
            if len(frames) > MAX_FRAMES:
                text = f"a message has {len(frames)} frames, more than {MAX_FRAMES}"
                raise InvalidArgument("frames", text, reason="MALFORMED_FRAME")
            if self.state is State.HELLO:
                frames = self._without_hello(frames, now)
        except InvalidArgument as error:
            self.fail(error)
        else:
            self.incoming.add(frames, size)

    def next_frames(self, accepted: Container[str]) -> list[tuple[str, Any]]:
        """Return the kinds and contents of the next frames to handle. Returns none while `paused`.

        Only a few are returned at a time, so that the first answers do not wait for the last frame. The kind of an
        unknown frame is "", and its content is the whole frame. If a kind is not in `accepted`, the stream ends with
        InvalidArgument.
        """
        if self.state not in _HANDLES:
            self.incoming.clear()
        if not self.incoming or self.paused:
            return []
        found: list[tuple[str, Any]] = []
        for kind, frame in self.incoming.take():
            if kind not in accepted:
                name = kind or "frame"
                self.fail(InvalidArgument(f"frames.{name}", "is not a kind of frame that this side accepts"))
                break
            found.append((kind, getattr(frame, kind)) if kind else ("", frame))
        return found

    @property
    def frames_wait(self) -> bool:
        """Whether received frames wait to be handled."""
        return bool(self.incoming)

    @property
    def paused(self) -> bool:
        """Whether this side must not read or handle frames now, because too many bytes of its answers wait."""
        return self._waits and self.outgoing.answer_bytes > ANSWER_LIMIT

    def received_end(self) -> None:
        """Record that the other side has closed its direction, or that the call has been cancelled."""
        if self.state is State.HELLO:
            self.fail(Unavailable("the stream ended before a hello"))
        elif self.state is State.FINISHING:
            self._other_closed = True
        else:
            self._end()

    # How the stream ends.

    def end(self, error: CallError | None, now: float) -> None:
        """End the stream with `error` after the queued frames have been sent. A second call does nothing.

        For None, the stream also waits until the other side has read these frames.
        """
        if self.state in (State.HELLO, State.OPEN):
            self.state, self.error = State.FINISHING, error
            self.timer = now + (LEAVE_TIMEOUT if error is None else END_TIMEOUT)

    def fail(self, error: BaseException) -> None:
        """End the stream at once: the connection broke, the other side broke a rule, or a handler raised."""
        if self.state is not State.ENDED:
            self.failure = error
            self._end()

    def tick(self, now: float) -> None:
        """Do what is due at `timer`. Does nothing before that time."""
        if now < self.timer:
            return
        if self.state is State.OPEN:
            self._check(now)
        elif self.state is State.HELLO:
            self.fail(InvalidArgument("hello", f"did not come within {HELLO_TIMEOUT:g} s"))
        else:
            self._end()

    def _check(self, now: float) -> None:
        """Send a heartbeat if it is due. Ends the stream when the other side is silent or does not read."""
        self.timer = now + self._interval / CHECKS
        if now - self._received_at > self._timeout:
            self.end(Unavailable(f"the other side sent nothing for {self._timeout:g} s"), now)
        elif self._writing and now - self._sent_at > self._timeout:
            self.end(Unavailable(f"the other side read nothing for {self._timeout:g} s"), now)
        elif not self._writing and now - self._sent_at >= self._interval:
            self.send(self._heartbeat)

    def _all_sent(self, now: float) -> None:
        """Half-close the call after end(None), or end the stream.

        If the call were cancelled without the half-close, messages that the other side has not read would be lost. A
        servicer cannot half-close. Its call ends when the RPC's handler returns, and no message is lost then.
        """
        if self.error is None and self._half_closes and not self._other_closed:
            self.state, self.timer = State.HALF_CLOSED, now + LEAVE_TIMEOUT
        else:
            self._end()

    def _end(self) -> None:
        self.state, self.timer = State.ENDED, inf

    def _without_hello(self, frames: Sequence[Any], now: float) -> Sequence[Any]:
        """Take the hello, and return the frames that follow it."""
        if not frames or frames[0].WhichOneof("frame") != "hello":
            raise InvalidArgument("hello", "is missing; the first frame must be a hello")
        if self._hello_alone and len(frames) > 1:
            raise InvalidArgument(
                "hello", "is not alone in its message; send the other frames after the other side's hello"
            )
        self.hello = frames[0].hello
        self.state, self.timer = State.OPEN, now + self._interval / CHECKS
        return frames[1:]
