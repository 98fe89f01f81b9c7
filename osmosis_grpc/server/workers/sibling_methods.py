"""The methods that workers call at each other: those of RolloutService, and two that only workers have."""

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.wrappers_pb2 import Int64Value

from osmosis_grpc.engine import Engine
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.wire import control as wire
from osmosis_grpc.protocol.wire.methods import METHODS
from osmosis_grpc.protocol.wire.rollout import ROLLOUT

SERVICE = "osmosis.workers.Worker"
ROLLOUT_SERVICE = services_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name


class Method(NamedTuple):
    """A method, with the functions that make its messages from bytes and back."""

    path: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


FIND = Method(f"/{SERVICE}/Find", pb.GetRolloutRequest.SerializeToString, Int64Value.FromString)
LIST = Method(f"/{SERVICE}/List", pb.ListRolloutsRequest.SerializeToString, pb.ListRolloutsResponse.FromString)


def rollout_method(name: str) -> Method:
    """Return a method of RolloutService."""
    method = METHODS[name]
    return Method(method.path, method.request.SerializeToString, method.response.FromString)


def find(engine: Engine, owner: str, rollout_id: str, attempt: int = 0) -> int:
    """Return the attempt of a rollout that this worker has, accepted or not; by default the highest.

    If it belongs to another owner, return its negative. If there is none, return 0.
    """
    table = engine.context.table
    record = table.find(rollout_id, attempt) if attempt else table.highest(rollout_id)
    if record is None:
        return 0
    return record.attempt if record.owner == owner else -record.attempt


async def numbered_page(engine: Engine, owner: str, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
    """Return a page of this worker. Instead of a token, it has the position of each row, and + if there are more rows.

    So a list of all workers can go on after any row.
    """
    rows, more = await engine.rollouts.numbered_page(
        owner,
        wire.parse_page_token(request.page_token),
        request.page_size,
        wire.FILTER.from_wire(request),
        newest_first=request.newest_first,
    )
    positions = [str(position) for position, _ in rows] + ["+"] * more
    return pb.ListRolloutsResponse(
        rollouts=[ROLLOUT.to_wire(row) for _, row in rows], next_page_token=" ".join(positions)
    )
