"""RPC metrics with the names, labels and buckets of gRFC A66, in Prometheus spelling.

Calls is the CallSink of the package link. A method is registered with the server or one that this project calls; all
others come as "other". Messages are counted uncompressed, as nothing here compresses. A client call is one attempt:
the measured channels do not retry.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from osmosis_grpc.observability.metric_families import Family, Histogram, Reading, by_name

SECONDS = (
    0,
    0.00001,
    0.00005,
    0.0001,
    0.0003,
    0.0006,
    0.0008,
    0.001,
    0.002,
    0.003,
    0.004,
    0.005,
    0.006,
    0.008,
    0.01,
    0.013,
    0.016,
    0.02,
    0.025,
    0.03,
    0.04,
    0.05,
    0.065,
    0.08,
    0.1,
    0.13,
    0.16,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.65,
    0.8,
    1,
    2,
    5,
    10,
    20,
    50,
    100,
)
BYTES = (0, 1024, 2048, 4096, 16384, *(4**power for power in range(8, 17)))
_SENT, _RECEIVED = "sent_total_compressed_message_size_bytes", "rcvd_total_compressed_message_size_bytes"
_ENDED = ("grpc_method", "grpc_status")


class _Ended:
    """Calls of one method that ended with one status."""

    __slots__ = ("received", "seconds", "sent")

    def __init__(self) -> None:
        self.seconds, self.sent, self.received = Histogram(SECONDS), Histogram(BYTES), Histogram(BYTES)


class Calls:
    """Counts the calls that a server answers, or those that a client makes."""

    def __init__(self, side: Literal["server", "client"]) -> None:
        one = "call" if side == "server" else "attempt"
        prefix, calls = f"grpc_{side}_{one}", f"calls that this process {'answers' if side == 'server' else 'makes'}"
        self._families = (
            Family(f"{prefix}_started_total", "counter", f"Starts of {calls}.", ("grpc_method",)),
            Family(f"{prefix}_duration_seconds", "histogram", f"Duration of {calls}.", _ENDED),
            Family(f"{prefix}_{_SENT}", "histogram", f"Message bytes sent in {calls}.", _ENDED),
            Family(f"{prefix}_{_RECEIVED}", "histogram", f"Message bytes received in {calls}.", _ENDED),
        )
        self._whole = Family("grpc_client_call_duration_seconds", "histogram", f"Duration of {calls}.", _ENDED)
        self._side = side
        self._started: Counter[str] = Counter()
        self._ended: dict[tuple[str, str], _Ended] = {}

    def started(self, method: str) -> None:
        """Count a call that began."""
        self._started[method] += 1

    def ended(self, method: str, status: str, seconds: float, sent: int, received: int) -> None:
        """Count a call that ended; `status` is the name of a gRPC code, the sizes are in bytes."""
        ended = self._ended.get((method, status))
        if ended is None:
            ended = self._ended[method, status] = _Ended()
        ended.seconds.observe(seconds)
        ended.sent.observe(sent)
        ended.received.observe(received)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        started, seconds, sent, received = self._families
        ended = list(self._ended.items())
        yield by_name(started, self._started)
        yield seconds, [(labels, row.seconds) for labels, row in ended]
        yield sent, [(labels, row.sent) for labels, row in ended]
        yield received, [(labels, row.received) for labels, row in ended]
        if self._side == "client":
            yield self._whole, [(labels, row.seconds) for labels, row in ended]
