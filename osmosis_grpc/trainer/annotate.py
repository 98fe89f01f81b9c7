"""Reads events and stores annotations at the agent server that has the rollout."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TypedDict

from osmosis_grpc.protocol.errors import NotFound, Unavailable, Unimplemented
from osmosis_grpc.protocol.types import Annotation, SegmentAnnotation, TrajectoryEvent
from osmosis_grpc.protocol.wire.control import ANNOTATE
from osmosis_grpc.protocol.wire.event import annotate_request
from osmosis_grpc.trainer.agent_server_link import AgentServerLink

MAX_RECENT = 16_384
"""The servers of this many ended rollouts are remembered."""


class AnnotationFields(TypedDict, total=False):
    """The fields of Annotation by name, for type checkers."""

    id: str
    author: str
    segments: tuple[SegmentAnnotation, ...]
    advantage: float | None
    trained: bool | None
    dropped_reason: str
    weight_step: str
    reward: float | None
    sample: str
    labels: tuple[str, ...]
    note: str


class RecentServers:
    """The servers that reported the newest outcomes, by rollout id."""

    def __init__(self) -> None:
        self._servers: OrderedDict[str, AgentServerLink] = OrderedDict()

    def add(self, rollout_id: str, server: AgentServerLink) -> None:
        """Record the server of a rollout. If there are more than MAX_RECENT, forget the oldest rollout."""
        self._servers[rollout_id] = server
        self._servers.move_to_end(rollout_id)
        if len(self._servers) > MAX_RECENT:
            self._servers.popitem(last=False)

    def get(self, rollout_id: str) -> AgentServerLink | None:
        """Return the server of a rollout, attached or not; None if it is unknown."""
        return self._servers.get(rollout_id)

    def first(self, rollout_id: str, servers: Iterable[AgentServerLink]) -> Iterator[AgentServerLink]:
        """Yield the servers, beginning with the one that reported the rollout's outcome."""
        reported = self._servers.get(rollout_id)
        yield from sorted(servers, key=lambda server: server is not reported)


async def annotate(
    servers: Iterable[AgentServerLink], rollout_id: str, attempt: int, annotation: Annotation
) -> tuple[int, bool]:
    """Store an annotation on the first server that knows the rollout.

    Returns the number of the annotation's event, and whether this call has added it. If no server stores it, raises
    Unimplemented if a server does not support annotations, else Unavailable if a server is not attached now, else
    NotFound. Raises the CallError of a server that refuses the annotation.
    """
    request = annotate_request(rollout_id, attempt, annotation)
    away: list[str] = []
    lacking: list[str] = []
    for server in servers:
        if not server.attached:
            away.append(server.name)
            continue
        if ANNOTATE not in server.features:
            lacking.append(server.name)
            continue
        try:
            response = await server.annotate(request)
        except NotFound:
            continue
        return response.event_number, response.created
    if lacking:
        raise Unimplemented(f"{_names(lacking)} cannot store annotations, because its version lacks this feature")
    if away:
        known = f"no attached agent server knows rollout {rollout_id}"
        raise Unavailable(f"{known}, and these are not attached now: {', '.join(away)}", retry_after=1.0)
    raise _unknown(rollout_id)


async def events(
    servers: Iterable[AgentServerLink], rollout_id: str, attempt: int, after: int, *, tokens: bool
) -> AsyncGenerator[TrajectoryEvent, None]:
    """Yield the events of the first server that knows the rollout. Raises NotFound if none does."""
    for server in servers:
        begun = False
        try:
            async with aclosing(server.events(rollout_id, attempt, after, tokens=tokens)) as stream:
                async for event in stream:
                    begun = True
                    yield event
            return
        except NotFound:
            if begun:
                raise
    raise _unknown(rollout_id)


def _unknown(rollout_id: str) -> NotFound:
    return NotFound(f"no agent server knows rollout {rollout_id}", kind="rollout", name=rollout_id)


def _names(names: Sequence[str]) -> str:
    return f"agent server {names[0]}" if len(names) == 1 else f"each of the agent servers {', '.join(names)}"
