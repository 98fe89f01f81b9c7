"""control.proto: cancels, lists, event streams, and the information about a server."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Literal

from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import CancelResult, Capacity, RolloutState, ToolDict
from osmosis_grpc.types.jsontext import MAX_DEPTH
from osmosis_grpc.types.requests import MAX_ID_CHARS, check_id
from osmosis_grpc.types.server_info import AgentLoopInfo, DrainResult, ServerInfo, ServerLimits
from osmosis_grpc.wire import times
from osmosis_grpc.wire.message import tool_to_wire, tools_from_wire
from osmosis_grpc.wire.rollout import STATES, state_from_wire

PROTOCOL = (1, 1)
"""The lowest and the highest protocol version of this implementation."""


_DISPOSITIONS: dict[Literal["CANCELLED", "ALREADY_ENDED", "UNKNOWN"], pb.CancelDisposition.ValueType] = {
    "CANCELLED": pb.CANCEL_DISPOSITION_CANCELLED,
    "ALREADY_ENDED": pb.CANCEL_DISPOSITION_ALREADY_ENDED,
    "UNKNOWN": pb.CANCEL_DISPOSITION_UNKNOWN,
}


def selection_from_wire(request: pb.CancelRequest) -> dict[str, str]:
    """Returns which rollouts to cancel, as keyword arguments. Raises InvalidArgument naming the field."""
    kind = request.WhichOneof("selection")
    if kind is None or (kind == "all" and not request.all):
        raise InvalidArgument("selection", "name a rollout_id, a group_id, or set all")
    if request.attempt and kind != "rollout_id":
        raise InvalidArgument("attempt", "goes with a rollout_id")
    if kind == "all":
        return {}
    name = str(getattr(request, kind))
    check_id(name, kind)
    return {kind: name}


def cancelled_to_wire(row: CancelResult) -> pb.CancelResult:
    """Returns what a cancel did, as a message."""
    return pb.CancelResult(
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        disposition=_DISPOSITIONS[row.disposition],
        state=STATES[row.state] if row.state else 0,  # type: ignore[arg-type]
    )


def cancelled_from_wire(row: pb.CancelResult) -> CancelResult:
    """Returns what a cancel did. A disposition of a newer protocol becomes UNKNOWN."""
    names = {number: name for name, number in _DISPOSITIONS.items()}
    return CancelResult(row.rollout_id, row.attempt, names.get(row.disposition, "UNKNOWN"), state_from_wire(row.state))


def parse_page_token(token: str) -> int:
    """Returns the position after which a page begins. Raises InvalidArgument."""
    if token and not (token.isascii() and token.isdecimal() and len(token) < 18):
        raise InvalidArgument("page_token", "is not one of this server's")
    return int(token or 0)


def states_from_wire(states: Sequence[int]) -> list[RolloutState]:
    """Returns the states to list. Raises InvalidArgument for an unknown state."""
    known = [state_from_wire(state) for state in states]
    if None in known:
        raise InvalidArgument("states", "has an unknown state")
    return [state for state in known if state is not None]


def check_stream(request: pb.StreamEventsRequest) -> None:
    """Raises InvalidArgument for a stream request whose fields exclude each other."""
    if request.rollout_id:
        check_id(request.rollout_id, "rollout_id")
        for name in ("cursor", "from_now"):
            if getattr(request, name):
                raise InvalidArgument(name, "goes with a stream of all rollouts, not of one")
        return
    for name in ("attempt", "after"):
        if getattr(request, name):
            raise InvalidArgument(name, "goes with a rollout_id")
    if request.cursor and request.from_now:
        raise InvalidArgument("from_now", "does not go with a cursor")


def limits_to_wire(max_message_bytes: int, max_metadata_bytes: int, agent_timeout: float | None) -> pb.Limits:
    """Returns the bounds that a server sets, as a message."""
    return pb.Limits(
        max_message_bytes=max_message_bytes,
        max_metadata_bytes=max_metadata_bytes,
        max_json_depth=MAX_DEPTH,
        max_rollout_id_chars=MAX_ID_CHARS,
        agent_timeout=None if agent_timeout is None else times.duration(agent_timeout),
    )


def server_info_to_wire(
    *,
    version: str,
    process_uuid: str,
    journal_id: str,
    start_time: float,
    tools: Mapping[str, Sequence[ToolDict]],
    agent_versions: Mapping[str, str],
    capacity: Capacity,
    max_message_bytes: int,
    max_metadata_bytes: int,
    agent_timeout: float | None,
    draining: bool,
) -> pb.GetServerInfoResponse:
    """Returns a server's answer to GetServerInfo."""
    return pb.GetServerInfoResponse(
        version=version,
        protocol_min=PROTOCOL[0],
        protocol_max=PROTOCOL[1],
        process_uuid=process_uuid,
        journal_id=journal_id,
        start_time=times.timestamp(start_time),
        agent_loops=[
            pb.AgentLoopInfo(
                name=name, tools=[tool_to_wire(tool) for tool in loop_tools], version=agent_versions.get(name, "")
            )
            for name, loop_tools in sorted(tools.items())
        ],
        capacity=pb.Capacity(
            max_concurrent=capacity.max_concurrent,
            max_queued=capacity.max_queued,
            running=capacity.running,
            queued=capacity.queued,
            abandoned=capacity.abandoned,
            undelivered=capacity.undelivered,
            expired=capacity.expired,
            completed=capacity.completed,
        ),
        limits=limits_to_wire(max_message_bytes, max_metadata_bytes, agent_timeout),
        draining=draining,
    )


def server_info_from_wire(info: pb.GetServerInfoResponse) -> ServerInfo:
    """Returns a server's information. Raises InvalidArgument for tools that cannot be read."""
    limits, capacity = info.limits, info.capacity
    return ServerInfo(
        version=info.version,
        protocol_min=info.protocol_min,
        protocol_max=info.protocol_max,
        process_uuid=info.process_uuid,
        journal_id=info.journal_id,
        start_time=times.unix(info.start_time),
        agent_loops=tuple(
            AgentLoopInfo(name=loop.name, tools=tools_from_wire(loop.tools, "tools"), version=loop.version)
            for loop in info.agent_loops
        ),
        capacity=Capacity(**{field.name: getattr(capacity, field.name) for field in fields(Capacity)}),
        limits=ServerLimits(
            max_message_bytes=limits.max_message_bytes,
            max_metadata_bytes=limits.max_metadata_bytes,
            max_json_depth=limits.max_json_depth,
            max_rollout_id_chars=limits.max_rollout_id_chars,
            agent_timeout=times.seconds(limits.agent_timeout) if limits.HasField("agent_timeout") else None,
        ),
        draining=info.draining,
    )


def drain_result_from_wire(left: pb.DrainResponse) -> DrainResult:
    """Returns what a server still has when a drain begins."""
    return DrainResult(running=left.running, queued=left.queued, undelivered=left.undelivered)
