"""RPC metrics with the names, labels and buckets of gRFC A66, in Prometheus spelling.

Methods that are not registered with the server are counted as "other". Sizes are of uncompressed messages, because this
project does not compress messages. A client call is one attempt, because the measured channels do not retry.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from osmosis_grpc.observability.metric_families import Family, Histograms, Reading, by_name

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


class Calls:
    """Counts the calls that a server answers, or that a client makes. Implements network.client_calls.CallSink."""

    def __init__(self, side: Literal["server", "client"]) -> None:
        one = "call" if side == "server" else "attempt"
        prefix, calls = f"grpc_{side}_{one}", f"calls that this process {'answers' if side == 'server' else 'makes'}"
        self._starts = Family(f"{prefix}_started_total", "counter", f"Starts of {calls}.", ("grpc_method",))
        self._started: Counter[str] = Counter()
        duration, sent, received = (
            Family(f"{prefix}_{name}", "histogram", text, ("grpc_method", "grpc_status"))
            for name, text in (
                ("duration_seconds", f"Duration of {calls}."),
                (_SENT, f"Message bytes sent in {calls}."),
                (_RECEIVED, f"Message bytes received in {calls}."),
            )
        )
        self._seconds = Histograms(duration, SECONDS)
        self._sent, self._received = Histograms(sent, BYTES), Histograms(received, BYTES)
        self._whole = replace(duration, name="grpc_client_call_duration_seconds") if side == "client" else None

    def started(self, method: str) -> None:
        """Count a call that began."""
        self._started[method] += 1

    def ended(self, method: str, status: str, seconds: float, sent: int, received: int) -> None:
        """Count a call that ended. `status` is the name of a gRPC code. `sent` and `received` are in bytes."""
        self._seconds.of(method, status).observe(seconds)
        self._sent.of(method, status).observe(sent)
        self._received.of(method, status).observe(received)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        yield by_name(self._starts, self._started)
        for histograms in (self._seconds, self._sent, self._received):
            yield histograms.read()
        if self._whole is not None:
            yield self._whole, self._seconds.read()[1]
