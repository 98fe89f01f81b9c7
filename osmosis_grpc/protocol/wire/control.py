"""control.proto: cancels, lists, event streams, features, and the information about a server."""

import math
from collections.abc import Iterable, Sequence

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import CancelResult, Capacity, RolloutFilter, RolloutState
from osmosis_grpc.protocol.types.requests import check_id
from osmosis_grpc.protocol.types.server_info import AgentLoopInfo, DrainResult, ServerInfo, ServerLimits, Worker
from osmosis_grpc.protocol.wire import times
from osmosis_grpc.protocol.wire.field_conversion import Codec, Converter, EnumNames
from osmosis_grpc.protocol.wire.message import TOOLS
from osmosis_grpc.protocol.wire.rollout import STATES

ABANDON_CHAT = "abandon_chat"
ANNOTATE = "annotate"
BLOBS = "blobs"
FORK = "fork"
GOODBYE = "goodbye"
OUTCOME_BY_REFERENCE = "outcome_by_reference"

FEATURES = (ABANDON_CHAT, ANNOTATE, BLOBS, FORK, GOODBYE, OUTCOME_BY_REFERENCE)
"""The features of our servers and trainers, as they list them."""

MAX_FEATURES = 256
"""The most feature names that are kept for a peer."""


def features_from_wire(names: Iterable[str]) -> frozenset[str]:
    """Return the features of a peer. Unknown names are kept, because a later version may use them."""
    return frozenset(list(names)[:MAX_FEATURES])


PROTOCOL = (1, 1)
"""The lowest and the highest protocol version of this implementation."""


CANCEL_RESULT = Converter(
    CancelResult,
    pb.CancelResult,
    disposition=EnumNames(("CANCELLED", "ALREADY_ENDED", "UNKNOWN"), pb.CancelDisposition, "").codec("UNKNOWN"),
    state=STATES.codec(None),
)
AGENT_LOOP = Converter(AgentLoopInfo, pb.AgentLoopInfo, tools=TOOLS)
CAPACITY = Converter(Capacity, pb.Capacity)
LIMITS = Converter(ServerLimits, pb.Limits)
WORKER = Converter(Worker, pb.Worker)
SERVER_INFO = Converter(ServerInfo, pb.GetServerInfoResponse)
DRAIN_RESULT = Converter(DrainResult, pb.DrainResponse)


def selection_from_wire(request: pb.CancelRequest) -> dict[str, str]:
    """Return the keyword arguments that select the rollouts to cancel. Raises InvalidArgument naming the field."""
    kind = request.WhichOneof("selection")
    if kind is None:
        raise InvalidArgument("selection", "name a rollout_id, a group_id or a rollout_id_prefix, or set all")
    if request.attempt and kind != "rollout_id":
        raise InvalidArgument("attempt", "goes with a rollout_id")
    if kind == "all":
        return {}
    name = str(getattr(request, kind))
    check_id(name, kind)
    return {kind: name}


def parse_page_token(token: str) -> int:
    """Return the position after which a page begins. Raises InvalidArgument."""
    if token and not (token.isascii() and token.isdecimal() and len(token) < 18):
        raise InvalidArgument("page_token", "is not one of this server's")
    return int(token or 0)


def _states_from_wire(states: Sequence[int], path: str) -> tuple[RolloutState, ...]:
    known = [STATES.names.get(state) for state in states]
    if None in known:
        raise InvalidArgument(path, "has an unknown state")
    return tuple(state for state in known if state is not None)


def _number(value: float, path: str) -> float:
    if math.isnan(value):
        raise InvalidArgument(path, "is not a number")
    return value


_NUMBER = Codec(float, _number)
FILTER = Converter(
    RolloutFilter,
    pb.ListRolloutsRequest,
    ("page_size", "page_token", "newest_first"),
    states=Codec(lambda states: [STATES.numbers[state] for state in states], _states_from_wire),
    min_reward=_NUMBER,
    max_reward=_NUMBER,
    stalled=Codec(times.duration, times.checked_seconds),
)
"""Converts a RolloutFilter. The message also has the fields of the page, which the caller sets."""


def check_stream(request: pb.StreamEventsRequest) -> None:
    """Raise InvalidArgument if two fields of a stream request exclude each other."""
    if request.rollout_id:
        check_id(request.rollout_id, "rollout_id")
        for name in ("cursor", "from_now"):
            if getattr(request, name):
                raise InvalidArgument(name, "goes with a stream of all rollouts, not of one")
        return
    for name in ("attempt", "after_event"):
        if getattr(request, name):
            raise InvalidArgument(name, "goes with a rollout_id")
    if request.cursor and request.from_now:
        raise InvalidArgument("from_now", "does not go with a cursor")
