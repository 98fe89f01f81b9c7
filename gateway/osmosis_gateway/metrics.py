"""The page /metrics: read on the event loop, written on another thread."""

import asyncio
from collections.abc import Iterator

from osmosis_grpc.errors import MissingExtraError, Unimplemented
from osmosis_grpc.observability import Reading, Source
from osmosis_grpc.observability.process_metrics import ProcessMetrics


class GatewayMetrics:
    """A Source: the metrics of a gateway that runs alone, which is a trainer to its agent server."""

    def __init__(self, trainer: Source) -> None:
        self._sources: tuple[Source, ...] = (ProcessMetrics(), trainer)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        for source in self._sources:
            yield from source.read()


async def render(source: Source, accept: str) -> tuple[bytes, str]:
    """Returns the page and its content type. Raises Unimplemented naming the extra that is missing."""
    readings = list(source.read())
    try:
        return await asyncio.to_thread(_render, readings, accept)
    except MissingExtraError as error:
        raise Unimplemented(str(error)) from None


def _render(readings: list[Reading], accept: str) -> tuple[bytes, str]:
    from osmosis_grpc.observability.exposition import render  # not at the start: few servers are ever asked

    return render(readings, accept)
