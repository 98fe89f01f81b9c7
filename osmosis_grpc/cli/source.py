"""Answers questions about rollouts from a running server or from a server's state folder.

A Source is used as `async with open_source("show", options) as source`.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.cli.state_folder import SourceError, find_attempt, opened, state_folder, usual_folder
from osmosis_grpc.console.option import host_port
from osmosis_grpc.engine.resolve_references import resolve_references
from osmosis_grpc.errors import CallError, NotFound, Unavailable
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.serve.security_options import credentials_from_options
from osmosis_grpc.serve.startup import usage_error
from osmosis_grpc.settings import RolloutClientSettings, problems
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.supervise import Backoff
from osmosis_grpc.trainer.rollout_client import RolloutClient
from osmosis_grpc.types import Activity, JournaledRollout, RolloutInfo, RolloutState, TrajectoryEvent, events

SERVER = "127.0.0.1:50051"
"""The server that commands ask if there is no state folder."""
TIMEOUT = 10.0
"""Seconds that a call to a server may take."""
LOST_AFTER = 120.0
"""Commands that follow events end if the server was away for this many seconds."""
POLL = 0.2
"""Seconds between two looks at a journal that another process may write."""

Events = AsyncGenerator[TrajectoryEvent, None]


class Source(ABC):
    """Rollouts and their events. Methods raise SourceError."""

    where: str
    """The server or the folder, for people."""

    async def __aenter__(self) -> "Source":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @abstractmethod
    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """Return an attempt of a rollout, the newest by default. After the end, it has its outcome with all tokens."""

    @abstractmethod
    def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """Yield the events of an attempt with numbers above `after`. With `follow`, yield new ones until the last."""

    @abstractmethod
    def all_events(self) -> Events:
        """Yield the new events of all rollouts, without end."""


class ServerSource(Source):
    """Asks a running server. It shows the rollouts of the token's owner."""

    def __init__(self, target: str, credentials: Credentials) -> None:
        self.where = f"the server {target}"
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
            raise SourceError(f"{self.where}: {error}; --server, --token and --tls say how to reach it") from None


class FolderSource(Source):
    """Reads a state folder, which a server may be using. It shows the rollouts of all owners."""

    def __init__(self, folder: Path) -> None:
        self.where = f"the state folder {folder}"
        self._folder = folder

    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """See Source."""
        with opened(self._folder) as reader:
            entry = find_attempt(reader, self._folder, rollout_id, attempt)
            outcome = entry.outcome and resolve_references(entry.outcome, reader.trajectory)
            request = entry.init.request
            if entry.end_time is None:
                return unfinished_info(entry, reader.trajectory(request.rollout_id, request.attempt))
            return ended_info(replace(entry, outcome=outcome))

    async def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """See Source."""
        position = 0
        with opened(self._folder) as reader:
            entry = find_attempt(reader, self._folder, rollout_id, attempt)
            attempt = entry.init.request.attempt
            positions = reader.positions(rollout_id, attempt)
            position = positions[-1] if positions else 0
            found = list(reader.trajectory(rollout_id, attempt))
        settled = entry.settled
        for event in found:
            if event.event_number > after:
                yield event
        while follow and not settled:
            await asyncio.sleep(POLL)
            with opened(self._folder) as reader:
                row = reader.row(rollout_id, attempt)
                settled = row is None or bool(row.settled)  # the journal may have dropped it
                found, position = reader.new_events(position, rollout_id, attempt)
            for event in found:
                yield event

    async def all_events(self) -> Events:
        """See Source."""
        with opened(self._folder) as reader:
            position = reader.last_position()
        while True:
            with opened(self._folder) as reader:
                found, position = reader.new_events(position)
            for event in found:
                yield event
            if not found:
                await asyncio.sleep(POLL)


def open_source(command: str, options: SourceOptions) -> Source:
    """Return the source that the options name. A wrong option ends the command with exit code 2.

    Without --server and --state-dir, the source is the state folder of the settings if it has a journal, else the
    server SERVER.
    """
    if options.server is not None and options.state_dir is not None:
        usage_error(command, "--server and --state-dir exclude each other; name one of them")
    if options.state_dir is not None:
        return FolderSource(state_folder(command, options.state_dir))
    if options.server is None and (folder := usual_folder(command)) is not None and (folder / FILE).exists():
        return FolderSource(folder)
    try:
        target = host_port(options.server or SERVER)
        credentials = _credentials(options)
        credentials.check_target(target)
        return ServerSource(target, credentials)
    except ValidationError as error:
        usage_error(command, problems(error))
    except ValueError as error:
        usage_error(command, str(error).replace("--target-", "--").replace("pass insecure=True", "pass --insecure"))


def _credentials(options: SourceOptions) -> Credentials:
    """Return the credentials of the options, or else of the variables OSMOSIS_ROLLOUT_CLIENT_*. Raises ValueError."""
    given = {name: getattr(options, name) for name in ("token", "token_file", "tls", "ca", "cert", "key")}
    known = RolloutClientSettings(**{name: value for name, value in given.items() if value})
    return credentials_from_options(
        known.secret("token"),
        known.ca,
        known.cert,
        known.key,
        tls=known.tls,
        insecure=options.insecure,
        names=("--token", "-"),
    )


def ended_info(entry: JournaledRollout) -> RolloutInfo:
    """Return the state of an ended rollout in a journal."""
    return _info(
        entry,
        entry.state,
        Activity("ended" if entry.settled else "delivering", entry.end_time or entry.accept_time),
        undelivered=not entry.settled,
    )


def unfinished_info(entry: JournaledRollout, trail: Iterable[TrajectoryEvent]) -> RolloutInfo:
    """Return the state of an unfinished rollout in a journal. Its row does not have it, so it comes from its events."""
    known = list(trail)
    starts = [event.time for event in known if isinstance(event.kind, events.Started | events.Resumed)]
    state = RolloutState.RUNNING if starts else RolloutState.QUEUED
    info = _info(entry, state, activity_of(known, entry.accept_time))
    return replace(
        info,
        start_time=starts[0] if starts else None,
        last_event_number=known[-1].event_number if known else entry.last_event_number,
    )


def _info(
    entry: JournaledRollout, state: RolloutState, activity: Activity, *, undelivered: bool = False
) -> RolloutInfo:
    request = entry.init.request
    return RolloutInfo(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        agent_loop=entry.agent_loop,
        state=state,
        activity=activity,
        group=request.group,
        accept_time=entry.accept_time,
        start_time=entry.start_time,
        end_time=entry.end_time,
        last_event_number=entry.last_event_number,
        undelivered=undelivered,
        outcome=entry.outcome,
    )


def activity_of(trail: Iterable[TrajectoryEvent], accept_time: float) -> Activity:
    """Return what an unfinished rollout does, in the words of the engine, from its events."""
    doing: dict[tuple[object, ...], Activity] = {}
    latest = Activity("queued", accept_time)
    for event in trail:
        kind = event.kind
        if isinstance(kind, events.Started | events.Resumed):
            doing.clear()
            latest = Activity("agent", event.time)
        elif isinstance(kind, events.ChatRequested):
            words = f"chat {kind.sample} {kind.chat_number}"
            doing["chat", kind.sample, kind.chat_number] = Activity(words, event.time)
        elif isinstance(kind, events.ChatAnswered | events.ChatFailed):
            if isinstance(kind, events.ChatAnswered) or not kind.will_retry:
                doing.pop(("chat", kind.sample, kind.chat_number), None)
                latest = Activity("agent", event.time)
        elif isinstance(kind, events.ToolCalled):
            name = str((kind.call.get("function") or {}).get("name"))
            doing["tool", kind.sample, kind.call.get("id")] = Activity(f"tool {name}", event.time)
        elif isinstance(kind, events.ToolReturned):
            doing.pop(("tool", kind.sample, kind.tool_call_id), None)
            latest = Activity("agent", event.time)
    return next(reversed(doing.values()), latest)
