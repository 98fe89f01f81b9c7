"""Answers questions about rollouts from a running server."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing

from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Annotation, RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.server_info import DrainResult, ServerInfo
from osmosis_grpc.records.reading.chosen_server import LOST_AFTER, ChosenServer
from osmosis_grpc.records.reading.source_port import Events, Source
from osmosis_grpc.supervise import SYSTEM, Backoff


class ServerSource(Source):
    """Asks a running server. It shows the rollouts of the token's owner."""

    def __init__(self, server: ChosenServer, on_connected: Callable[[], None] | None = None) -> None:
        """`on_connected` is called when the server accepts connections."""
        self.where = str(server)
        self._server = server
        self._on_connected = on_connected
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Source":
        self._client = await self._stack.enter_async_context(self._server.client())
        if self._on_connected is not None:
            self._on_connected()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """See Source."""
        with self._server.explained():
            return await self._client.page(where, token, limit=limit, newest_first=newest_first)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        with self._server.explained():
            return await self._client.get(rollout_id, attempt)

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        with self._server.explained():
            known = await self._client.get(rollout_id, attempt)
            last = known.last_event_number
            if not follow and after >= last:
                return
            stream = self._client.events(rollout_id, after=after, attempt=known.attempt)
            async with aclosing(stream) as found:
                async for event in found:
                    yield event
                    if not follow and event.event_number >= last:
                        return

    async def annotate(self, rollout_id: str, attempt: int, annotation: Annotation) -> bool:
        """See Annotator."""
        with self._server.explained():
            return (await self._client.annotate(rollout_id, annotation, attempt=attempt))[1]

    async def server_info(self) -> ServerInfo:
        """Return the version, the limits and the load of the server. Raises SourceError."""
        with self._server.explained():
            return await self._client.info()

    async def drain(self) -> DrainResult:
        """Let the server finish its rollouts and accept no new ones. Raises SourceError."""
        with self._server.explained():
            return await self._client.drain()

    async def all_events(self) -> Events:
        """See Source."""
        cursor, answered, backoff = "", time.monotonic(), Backoff(0.25, 5.0, system=SYSTEM)
        while True:
            with self._server.explained():
                try:
                    async with aclosing(self._client.all_events(cursor, from_now=not cursor)) as found:
                        async for position, event in found:
                            cursor = position
                            answered = time.monotonic()
                            backoff.reset()
                            if event is not None:
                                yield event
                except Unavailable as error:
                    if not cursor or not error.retryable or time.monotonic() - answered > LOST_AFTER:
                        raise
            await asyncio.sleep(backoff.next())
