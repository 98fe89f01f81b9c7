"""Renders the page /metrics: reads the metrics on the event loop and formats them on another thread."""

import asyncio
from collections.abc import Iterator

from osmosis_grpc.errors import MissingExtraError, Unimplemented
from osmosis_grpc.observability import Reading, Source
from osmosis_grpc.observability.process_metrics import ProcessMetrics


class GatewayMetrics:
    """A Source with the metrics of a standalone gateway, which is a trainer to its agent server."""

    def __init__(self, trainer: Source) -> None:
        self._sources: tuple[Source, ...] = (ProcessMetrics(), trainer)

    def read(self) -> Iterator[Reading]:
        """See Source."""
        for source in self._sources:
            yield from source.read()


async def render(source: Source, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type. Raises Unimplemented naming the missing extra."""
    readings = list(source.read())
    try:
        return await asyncio.to_thread(_render, readings, accept)
    except MissingExtraError as error:
        raise Unimplemented(str(error)) from None


def _render(readings: list[Reading], accept: str) -> tuple[bytes, str]:
    from osmosis_grpc.observability.exposition import render  # imported at the first scrape, as few servers are scraped

    return render(readings, accept)
