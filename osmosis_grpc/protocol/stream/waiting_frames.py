"""The frames of a stream that wait: to be sent, or to be handled. No I/O and no clock.

When many rollouts begin and end together, their Inits and outcomes take most of the time of both sides. A chat must not
wait for them, because its agent waits for the reply. So chats and replies are handled before all other frames.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

MAX_FRAMES = 4096
"""The most frames of a message."""
MAX_BATCH_BYTES = 1024 * 1024
"""The most bytes of a message. A single larger frame is a message of its own."""
_ANSWER_OVERHEAD = 256  # bytes of memory that a waiting answer takes in addition to its own bytes


class OutgoingFrames:
    """The frames that wait to be sent, in the order of sending."""

    __slots__ = ("_events", "_frames", "answer_bytes", "event_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, int]] = deque()
        """Each frame, and the number that the frame adds to `answer_bytes`. A frame that is not an answer adds 0."""
        self._events: deque[tuple[bytes, int]] = deque()
        self.answer_bytes = 0
        """The bytes of the waiting answers. An answer counts as the bytes of its frame plus _ANSWER_OVERHEAD."""
        self.event_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames or self._events)

    def __len__(self) -> int:
        return len(self._frames) + len(self._events)

    def add(self, frame: bytes, *, answer: bool = False) -> None:
        """Queue a frame that is sent before all events. With `answer`, the frame counts in `answer_bytes`."""
        size = len(frame) + _ANSWER_OVERHEAD if answer else 0
        self._frames.append((frame, size))
        self.answer_bytes += size

    def add_event(self, frame: bytes) -> None:
        """Queue an event frame, which is sent after all other frames."""
        self._events.append((frame, 0))
        self.event_bytes += len(frame)

    def batch(self) -> list[bytes]:
        """Remove the frames of the next message from the queues, and return them.

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


FIRST_AT_ONCE = 16
"""The most chats and replies that take() returns."""
OTHERS_AT_ONCE = 8
"""About the number of other frames that take() returns if few wait."""
MOST_OTHERS = 32
"""The most other frames that take() returns."""
MORE_FOR_EACH = 16
"""take() returns one more of the other frames for each 16 that wait, so that a cancel behind many Inits is not late."""
LONG = {"init": 4, "complete": 4}
"""An Init or an outcome counts as this many frames, because its work takes longer."""
READ_AHEAD = 1024 * 1024
"""While at least this many bytes wait, no further message is read."""


class ReceivedFrames:
    """The frames that wait to be handled. Chats and replies keep their order, and so do all other frames."""

    __slots__ = ("_first", "_others", "bytes")

    def __init__(self) -> None:
        self._first: deque[tuple[str, Any, float]] = deque()
        """The kind of each frame, the frame, and the number that the frame adds to `bytes`."""
        self._others: deque[tuple[str, Any, float]] = deque()
        self.bytes = 0.0
        """About how many bytes wait. All frames of a message count the same."""

    def __bool__(self) -> bool:
        return bool(self._first or self._others)

    @property
    def chats_wait(self) -> bool:
        """Whether chats or replies wait."""
        return bool(self._first)

    @property
    def full(self) -> bool:
        """Whether READ_AHEAD bytes wait, or MAX_FRAMES frames, or more."""
        return self.bytes >= READ_AHEAD or len(self._first) + len(self._others) >= MAX_FRAMES

    def add(self, frames: Sequence[Any], size: int) -> None:
        """Queue the frames of a message of `size` bytes."""
        share = size / max(len(frames), 1)
        for frame in frames:
            kind = frame.WhichOneof("frame") or ""
            queue = self._first if _goes_first(kind, frame) else self._others
            queue.append((kind, frame, share))
        self.bytes += size if frames else 0

    def take(self) -> list[tuple[str, Any]]:
        """Remove the next frames to handle, and return their kinds and themselves. The kind "" is unknown."""
        taken: list[tuple[str, Any]] = []
        others_at_once = min(MOST_OTHERS, OTHERS_AT_ONCE + len(self._others) // MORE_FOR_EACH)
        for queue, room in ((self._first, FIRST_AT_ONCE), (self._others, others_at_once)):
            while queue and room > 0:
                kind, frame, share = queue.popleft()
                taken.append((kind, frame))
                self.bytes -= share
                room -= LONG.get(kind, 1)
        if not self:
            self.bytes = 0.0
        return taken

    def clear(self) -> None:
        """Drop all frames."""
        self._first.clear()
        self._others.clear()
        self.bytes = 0.0


def _goes_first(kind: str, frame: Any) -> bool:
    """Return whether a frame is handled before other frames.

    A refusal is not, because the trainer refuses a chat after a Cancel, which must be handled first. The AbandonChat of
    all chats is not, because the outcome before it must be handled first. An Init's response and the AbandonChat of one
    chat keep their order among the chats.
    """
    if kind in ("chat_reply", "init_reply"):
        return bool(getattr(frame, kind).WhichOneof("result") == "response")
    return kind == "chat" or (kind == "abandon_chat" and frame.abandon_chat.chat_number > 0)
