"""Calls the other workers of the same server, over sockets that only this user can reach.

Workers call the methods of RolloutService at each other, and two that only workers have: FIND and LIST.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import cancellable, error_of
from osmosis_grpc.network.handlers import REQUEST_ID_KEY
from osmosis_grpc.network.network import Network
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types.server_info import Worker
from osmosis_grpc.protocol.wire.methods import METHODS, Method


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """What a worker knows about its server."""

    index: int
    """The number of this worker, from 0."""
    ports: Mapping[int, int]
    """The gRPC port of each worker, by its number. It changes when a worker leaves for good."""
    accepting: int
    """The workers below this number accept new rollouts."""
    secret: str = field(repr=False)
    """The secret by which the workers recognize each other."""
    sockets: Path
    """A folder that only the user of the server can read. Each worker has a socket in it."""

    @property
    def leaves(self) -> bool:
        """Whether this worker finishes its rollouts and accepts no new ones."""
        return self.index >= self.accepting

    def socket(self, worker: int, kind: str = "grpc") -> Path:
        """Return the path of a worker's socket for calls of its siblings."""
        return self.sockets / f"{worker}.{kind}"


SERVICE = "osmosis.workers.Worker"
FIND = Method("Find", SERVICE, f"/{SERVICE}/Find", pb.GetRolloutRequest, Int64Value, False, False)
"""Returns the attempt that a worker has of a rollout, see find() in sibling_server.py."""
LIST = Method("List", SERVICE, f"/{SERVICE}/List", pb.ListRolloutsRequest, pb.ListRolloutsResponse, False, False)
"""Returns a page of a worker's rollouts, see numbered_page() in sibling_server.py."""
SECRET_KEY, OWNER_KEY = "osmosis-worker-secret", "osmosis-owner-bin"
"""The metadata keys of a call between workers: for their secret, and for the owner of the rollouts."""
RETRY_AFTER = 1.0
"""The RetryInfo of a call to a worker that restarts, in seconds."""
PATIENCE = 5.0
"""How many seconds patient() waits for a restarting worker. A restart takes about one."""
PAUSE = 0.1
"""The seconds between two tries of patient()."""
TIMEOUT = 60.0
"""The timeout of a call between workers in seconds, unless its caller has set a shorter one."""
Answer = TypeVar("Answer")
_OPTIONS = client_options(
    grpc__enable_retries=0, grpc__initial_reconnect_backoff_ms=100, grpc__max_reconnect_backoff_ms=1000
)


class WorkerAway(Unavailable):
    """A worker does not answer, because it restarts."""


async def patient(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a read-only call, and repeat it while a worker restarts. Raises WorkerAway after PATIENCE seconds."""
    clock = asyncio.get_running_loop().time
    until = clock() + PATIENCE
    while True:
        try:
            return await call()
        except WorkerAway:
            if clock() > until:
                raise
        await asyncio.sleep(PAUSE)


class Siblings:
    """The other workers. Belongs to the running event loop."""

    def __init__(self, config: WorkersConfig, network: Network) -> None:
        self.config = config
        self._network = network
        self._channels: dict[int, grpc.aio.Channel] = {}

    @property
    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [worker for worker in sorted(self.config.ports) if worker != self.config.index]

    def workers(self, journal_id: str) -> list[Worker]:
        """Return all workers in the order of their numbers. `journal_id` is that of this worker."""
        index, ports = self.config.index, self.config.ports
        return [Worker(ports[worker], journal_id if worker == index else "") for worker in sorted(ports)]

    async def call(self, worker: int, method: Method, request: Any, owner: str, context: Any = None) -> Any:
        """Call a method at another worker.

        Args:
            worker: The number of the worker.
            method: The method, which has one answer.
            request: Its request.
            owner: The owner of the rollouts.
            context: The call that this one is made for, if any. Its deadline and request id are passed on.

        Raises:
            CallError: The error of the other worker; WorkerAway if it does not answer.
        """
        left = context.time_remaining() if context is not None else None
        headers = context.invocation_metadata() or () if context is not None else ()
        stub: Any = self._channel(worker).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        metadata = (*self._metadata(owner), *((key, value) for key, value in headers if key == REQUEST_ID_KEY))
        try:
            timeout = TIMEOUT if left is None else min(left, TIMEOUT)
            return await cancellable(stub(request, timeout=timeout, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise self._error(worker, error) from None

    async def events(self, worker: int, request: pb.StreamEventsRequest, owner: str) -> AsyncGenerator[Any, None]:
        """Yield the answers of StreamEvents at another worker. Raises CallError."""
        method = METHODS["StreamEvents"]
        stub: Any = self._channel(worker).unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        call = stub(request, metadata=self._metadata(owner))
        try:
            while (response := await cancellable(call.read())) is not grpc.aio.EOF:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._error(worker, error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, worker: int) -> grpc.aio.Channel:
        known = self._channels.get(worker)
        if known is None:
            target = f"unix:{self.config.socket(worker)}"
            known = self._channels[worker] = self._network.channel(target, None, _OPTIONS)
        return known

    def _metadata(self, owner: str) -> tuple[tuple[str, str | bytes], ...]:
        return (SECRET_KEY, self.config.secret), (OWNER_KEY, owner.encode())

    def _error(self, worker: int, error: grpc.aio.AioRpcError) -> CallError:
        """Return the worker's error, or WorkerAway if the call broke before the worker answered."""
        answered = any(key == REQUEST_ID_KEY for key, _ in error.trailing_metadata() or ())
        if not answered and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return self.away(worker)
        return error_of(error, hide=self.config.secret)

    def away(self, worker: int) -> "WorkerAway":
        """Return the error of a call to a worker that does not answer."""
        port = self.config.ports.get(worker, 0)
        return WorkerAway(
            f"worker {worker} of this server, with the port {port}, is restarting", retry_after=RETRY_AFTER
        )


async def results(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await calls concurrently, and return their results or CallErrors. Raises any other error."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, CallError):
            raise each
    return found


def raise_first(answers: Mapping[int, Any]) -> None:
    """Raise the first error among answers."""
    for each in answers.values():
        if isinstance(each, CallError):
            raise each
