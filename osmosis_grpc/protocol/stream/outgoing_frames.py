"""The frames of a stream that wait to be sent, and the messages that they make. No I/O and no clock."""

from collections import deque

MAX_FRAMES = 4096
"""A message has at most this many frames."""
MAX_BATCH_BYTES = 1024 * 1024
"""A message has at most this many bytes. A single larger frame is a message of its own."""
_ANSWER_OVERHEAD = 256  # bytes of memory that a waiting answer takes in addition to its own bytes


class OutgoingFrames:
    """The frames that wait to be sent, in the order of sending."""

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

    def __len__(self) -> int:
        return len(self._frames) + len(self._events)

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
