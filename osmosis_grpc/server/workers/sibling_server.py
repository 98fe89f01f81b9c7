"""Answers the calls of the other workers: RolloutService for any owner, and the two methods of siblings.py.

The server listens at a Unix socket. A caller sends the workers' shared secret and the name of the owner.
"""

import hmac
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from osmosis_grpc.engine import Engine
from osmosis_grpc.network.bearer_tokens import WRONG
from osmosis_grpc.network.forked_sockets import keep_from_children
from osmosis_grpc.network.handlers import Registrar, metadata_value
from osmosis_grpc.network.network import Network, start
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc.protocol.errors import Unauthenticated
from osmosis_grpc.protocol.wire import control as wire
from osmosis_grpc.protocol.wire.rollout import ROLLOUT
from osmosis_grpc.server.servicer import RolloutServicer
from osmosis_grpc.server.workers.siblings import FIND, LIST, OWNER_KEY, SECRET_KEY, SERVICE, WorkersConfig


class SiblingAccess:
    """Identifies the callers of a worker's socket. It has the methods of ServerSecurity that a servicer needs."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def authenticator(self) -> "SiblingAccess":
        """Return the check for every call."""
        return self

    def __call__(self, context: Any) -> str:
        """Return the owner that the sibling names. Raises Unauthenticated for a caller without the secret."""
        if not hmac.compare_digest(metadata_value(context, SECRET_KEY).encode(), self._secret):
            raise Unauthenticated(WRONG)
        return next(str(value.decode()) for key, value in context.invocation_metadata() if key == OWNER_KEY)

    def check_admin(self, context: Any) -> None:
        """Do nothing: the sibling has checked its caller."""


class SiblingServer:
    """The listener for the other workers."""

    def __init__(self, config: WorkersConfig, engine: Engine, network: Network) -> None:
        self._socket = config.socket(config.index)
        self._engine = engine
        self._server = network.server()
        self.access = SiblingAccess(config.secret)

    async def start(self, servicer: RolloutServicer) -> None:
        """Listen. `servicer` has the access of this server."""
        services: Any = Registrar(self._server, self.access, new_id=self._engine.supervisor.system.new_id)
        services_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, services)
        methods: Any = {
            method.name: grpc.unary_unary_rpc_method_handler(
                answer, method.request.FromString, method.response.SerializeToString
            )
            for method, answer in ((FIND, self._find), (LIST, self._list))
        }
        services.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        with suppress(FileNotFoundError):
            self._socket.unlink()  # a worker that was killed has left it behind
        try:
            self._server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError as error:  # the supervisor was killed, and another worker has removed the folder
            raise OSError(f"cannot listen at {self._socket}: {error}") from error
        keep_from_children(self._server, str(self._socket))
        await start(self._server)
        self.stop = partial(self._server.stop, 0.25)

    async def _find(self, request: pb.GetRolloutRequest, context: Any) -> Int64Value:
        return Int64Value(value=find(self._engine, self.access(context), request.rollout_id, request.attempt))

    async def _list(self, request: pb.ListRolloutsRequest, context: Any) -> pb.ListRolloutsResponse:
        return await numbered_page(self._engine, self.access(context), request)


def find(engine: Engine, owner: str, rollout_id: str, attempt: int = 0) -> int:
    """Return the number of the attempt that this worker has of a rollout, accepted or not; by default the highest.

    Return the negative number if the rollout belongs to another owner, and 0 if this worker does not have it.
    """
    table = engine.context.table
    record = table.find(rollout_id, attempt) if attempt else table.highest(rollout_id)
    if record is None:
        return 0
    return record.attempt if record.owner == owner else -record.attempt


async def numbered_page(engine: Engine, owner: str, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
    """Return a page of this worker, with the position of each row in place of the token, and a + if more rows follow.

    With the positions, the merged list of all workers can continue after any row.
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
