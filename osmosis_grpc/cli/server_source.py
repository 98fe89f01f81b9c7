"""Answers questions about rollouts from a running server."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import aclosing

from osmosis_grpc.cli.environment import sets_options
from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.cli.source_port import Events, Source
from osmosis_grpc.cli.state_folder import SourceError
from osmosis_grpc.console.option import host_port
from osmosis_grpc.errors import CallError, NotFound, Unavailable
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.serve.security_options import credentials_from_options
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.supervise import Backoff
from osmosis_grpc.trainer.rollout_client import RolloutClient
from osmosis_grpc.types import Annotation, RolloutFilter, RolloutInfo

SERVER = "127.0.0.1:50051"
"""The server that commands ask if there is no state folder."""
TIMEOUT = 10.0
"""Seconds that a call to a server may take."""
LOST_AFTER = 120.0
"""Commands that follow events end if the server was away for this many seconds."""


class ServerSource(Source):
    """Asks a running server. It shows the rollouts of the token's owner."""

    def __init__(self, target: str, credentials: Credentials, why: str = "") -> None:
        self.where = f"the server {target}"
        self._why = why
        self._target = target
        self._credentials = credentials

    async def __aenter__(self) -> "Source":
        shown = self._credentials
        self._client = RolloutClient(
            self._target,
            timeout=TIMEOUT,
            lost_after=LOST_AFTER,
            token=shown.token,
            tls=shown.tls,
            insecure=shown.insecure,
        )
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """See Source."""
        with self._explained():
            return await self._client.page(where, token, limit=limit, newest_first=newest_first)

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        with self._explained():
            return await self._client.get(rollout_id, attempt)

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        with self._explained():
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
        with self._explained():
            return (await self._client.annotate(rollout_id, annotation, attempt=attempt))[1]

    async def all_events(self) -> Events:
        """See Source."""
        cursor, answered, backoff = "", time.monotonic(), Backoff(0.25, 5.0)
        while True:
            with self._explained():
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

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise SourceError(f"{error} on {self.where}; list shows the rollouts that the token may see") from None
        except CallError as error:
            how = "--server, --token and --tls say how to reach it"
            raise SourceError(f"{self._why}{self.where}: {error}; {how}") from None


def server_source(command: str, options: SourceOptions, why: str = "") -> ServerSource:
    """Return the source for the server of the options. A wrong option ends the command with exit code 2.

    `why` begins the message about a server that cannot be reached. It says why the command asks this server.
    """
    try:
        target = host_port(options.server or SERVER)
        credentials = _credentials(options)
        credentials.check_target(target)
        return ServerSource(target, credentials, why)
    except ValueError as error:
        usage_error(command, str(error).replace("--target-", "--").replace("pass insecure=True", "pass --insecure"))


def _credentials(options: SourceOptions) -> Credentials:
    """Return the credentials of the options, or else of the variables OSMOSIS_ROLLOUT_CLIENT_*. Raises ValueError."""
    names = ("token", "token_file", "tls", "ca", "cert", "key")
    given = {name: value for name in names if (value := getattr(options, name))}
    if not given and not sets_options():
        return Credentials(insecure=options.insecure)
    from pydantic import ValidationError

    from osmosis_grpc.settings import RolloutClientSettings, problems

    try:
        known = RolloutClientSettings(**given)
    except ValidationError as error:
        raise ValueError(problems(error)) from None
    return credentials_from_options(
        known.secret("token"),
        known.ca,
        known.cert,
        known.key,
        tls=known.tls,
        insecure=options.insecure,
        names=("--token", "-"),
    )
