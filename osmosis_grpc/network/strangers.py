"""Limits the memory for requests of callers without a credential, on a server whose other calls need one."""

import asyncio
from typing import Any

from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.supervise import OnFailure, child, job

READ = job("link.read_request_of_stranger", OnFailure.RAISE)
MOST = 2
"""At most this many slow requests are read at once, each of at most MAX_MESSAGE_BYTES."""
PATIENCE = 0.005
"""Seconds after which a request is slow. A health check is a single packet, which arrives before its call does."""


class Strangers:
    """Reads the requests of strangers. If more than MOST of them are slow, the oldest are refused.

    gRPC does not say how large a request is before it has read it, and in a queue slow requests would hold up all
    others. So each request is read at once, and slow ones make room for newer ones.
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
            reading.add_done_callback(_seen)  # it ends with the call; cancelling it would cost the call its status


def _seen(reading: "asyncio.Task[Any]") -> None:
    if not reading.cancelled():
        reading.exception()
