"""Bounds the memory for requests of callers without a credential, on a server whose other callers need one."""

import asyncio
from typing import Any

from osmosis_grpc.errors import ResourceExhausted
from osmosis_grpc.supervise import OnFailure, child, job

READ = job("link.read_request_of_stranger", OnFailure.RAISE)
MOST = 2
"""So many slow requests may be on their way, each of MAX_MESSAGE_BYTES at most."""
PATIENCE = 0.005
"""Seconds after which a request is slow. A health check is one packet, which is there before its call is."""


class Strangers:
    """Reads the requests of strangers. Of more than MOST slow ones, the oldest are refused.

    gRPC does not say how large a request is before it has read it, and a queue would let slow requests keep all others
    waiting. So each request is read at once, and the slow ones make room for newer ones.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, None] = {}

    async def read(self, context: Any) -> Any:
        """Return the next message of a call. Raises ResourceExhausted."""
        place = object()
        self._waiting[place] = None
        reading = child(READ, context.read())
        try:
            while not (await asyncio.wait((reading,), timeout=PATIENCE))[0]:
                newer = len(self._waiting) - 1 - [*self._waiting].index(place)
                if newer >= MOST:
                    raise ResourceExhausted("too many callers without a credential send large or slow requests")
            return reading.result()
        finally:
            del self._waiting[place]
            reading.add_done_callback(_seen)  # it ends with the call; to cancel it would take the status from the call


def _seen(reading: "asyncio.Task[Any]") -> None:
    if not reading.cancelled():
        reading.exception()
