"""The Source port: rollouts and their events, from a server or from a state folder."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from pathlib import Path

from osmosis_grpc.protocol.types import (
    Annotation,
    RolloutFilter,
    RolloutInfo,
    RolloutRequest,
    ToolDict,
    TrajectoryEvent,
)
from osmosis_grpc.protocol.types.events import Accepted, Annotated

Events = AsyncGenerator[TrajectoryEvent, None]

LARGE_PAGE = 500
"""How many rollouts headers() reads in one page."""


def stopped_text(where: str, as_of: float) -> str:
    """Return the line shown for a source that no server uses."""
    return f"no server uses {where}; shown as of {time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(as_of))}"


class SourceError(Exception):
    """A journal or a server could not be read. The message says why and what to do."""


class NoRollout(SourceError):
    """The rollout, or this attempt of it, does not exist."""


class DamagedRollout(SourceError):
    """A rollout is damaged in the journal. Other rollouts can be read."""


class Source(ABC):
    """Rollouts and their events. Methods raise SourceError."""

    where: str
    """The server or the folder, for messages."""

    async def __aenter__(self) -> "Source":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def as_of(self) -> float | None:
        """Return None while a server uses the source, else the time of its newest event in Unix seconds."""
        return None

    @abstractmethod
    async def page(
        self, where: RolloutFilter, token: str = "", *, limit: int = 100, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], str]:
        """Return at most `limit` rollouts without outcomes, and the token of the next page, empty on the last one.

        The rollouts are in the order of acceptance, or reversed with `newest_first`.
        """

    async def headers(
        self, where: RolloutFilter, *, limit: int, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], bool]:
        """Return at most `limit` rollouts as page() does, but faster, and whether there are more.

        Settled rollouts may lack their groups and forks.
        """
        found: list[RolloutInfo] = []
        token = ""
        while len(found) < limit:
            rows, token = await self.page(
                where, token, limit=min(LARGE_PAGE, limit - len(found)), newest_first=newest_first
            )
            found += rows
            if not token:
                break
        return found, bool(token)

    @abstractmethod
    async def get(self, rollout_id: str, attempt: int = 0) -> RolloutInfo:
        """Return an attempt of a rollout, by default the newest. An ended one has its outcome, with all tokens."""

    async def request(self, rollout_id: str, attempt: int) -> tuple[RolloutRequest, Sequence[ToolDict]]:
        """Return the request of an attempt, and the tools that its agent loop listed."""
        async with aclosing(self.events(rollout_id, attempt)) as found:
            async for event in found:
                if isinstance(event.kind, Accepted):
                    return event.kind.init.request, event.kind.tools
        return RolloutRequest(rollout_id=rollout_id, attempt=attempt), ()

    async def annotations(self, rollout_id: str, attempt: int) -> Sequence[Annotation]:
        """Return the annotations of an attempt that has ended."""
        async with aclosing(self.events(rollout_id, attempt)) as found:
            return [event.kind.annotation async for event in found if isinstance(event.kind, Annotated)]

    async def rollout_folder(self, rollout_id: str, attempt: int) -> Path | None:
        """Return the folder with the files of an attempt, or None if it is not readable on this machine."""
        return None

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which repeated reads are cheap."""
        return nullcontext()

    @abstractmethod
    def events(self, rollout_id: str, attempt: int = 0, *, after: int = 0, follow: bool = False) -> Events:
        """Yield the events of an attempt with numbers above `after`. With `follow`, also wait for new events."""

    @abstractmethod
    def all_events(self) -> Events:
        """Yield the new events of all rollouts, without end."""
