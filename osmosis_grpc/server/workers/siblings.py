"""Calls the other workers of the same server, over sockets that only this user can reach."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import error_of
from osmosis_grpc.network.handlers import REQUEST_ID_KEY
from osmosis_grpc.network.network import Network
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types.server_info import Worker
from osmosis_grpc.server.workers.config import WorkersConfig
from osmosis_grpc.server.workers.sibling_methods import FIND, LIST, Method, rollout_method

SECRET_KEY, OWNER_KEY = "osmosis-worker-secret", "osmosis-owner-bin"
"""The metadata of a call between workers: the secret of the workers, and the owner of the rollouts for the caller."""
RETRY_AFTER = 1.0
"""The RetryInfo of a call to a worker that restarts, in seconds."""
PATIENCE = 5.0
"""A question about rollouts waits so many seconds for a worker that restarts. A restart takes about one."""
PAUSE = 0.1
"""Seconds between two looks whether a worker is there again."""
TIMEOUT = 60.0
"""A call between workers has this many seconds, unless the caller has set fewer."""
Answer = TypeVar("Answer")
_OPTIONS = client_options(
    grpc__enable_retries=0, grpc__initial_reconnect_backoff_ms=100, grpc__max_reconnect_backoff_ms=1000
)


class WorkerAway(Unavailable):
    """A worker does not answer, because it restarts."""


async def patient(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a call that changes nothing. Repeat it while a worker restarts. Raises WorkerAway after PATIENCE seconds."""
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

    async def call(self, worker: int, name: str, request: Any, context: Any, owner: str) -> Any:
        """Call a method of RolloutService at another worker for an owner. Raises CallError."""
        left = context.time_remaining()
        timeout = TIMEOUT if left is None else min(left, TIMEOUT)
        return await self._call(worker, rollout_method(name), request, owner, timeout, _request_id(context))

    async def find(self, worker: int, owner: str, rollout_id: str, attempt: int) -> int:
        """Return the attempt that another worker has, as sibling_methods.find() does. Raises CallError."""
        request = pb.GetRolloutRequest(rollout_id=rollout_id, attempt=attempt)
        return int((await self._call(worker, FIND, request, owner, TIMEOUT)).value)

    async def rows(self, worker: int, request: pb.ListRolloutsRequest, owner: str) -> pb.ListRolloutsResponse:
        """Return a page of another worker, see numbered_page() of sibling_methods.py. Raises CallError.

        A list without one worker's rollouts would be wrong, so this waits for a worker that restarts.
        """

        async def page() -> pb.ListRolloutsResponse:
            return await self._call(worker, LIST, request, owner, TIMEOUT)  # type: ignore[no-any-return]

        return await patient(page)

    async def stream(self, worker: int, name: str, request: Any, owner: str) -> AsyncGenerator[Any, None]:
        """Yield the answers of a method of RolloutService at another worker. Raises CallError."""
        method = rollout_method(name)
        make: Any = self._channel(worker).unary_stream(
            method.path, request_serializer=method.write, response_deserializer=method.read
        )
        call = make(request, metadata=self._metadata(owner))
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._error(worker, error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()

    async def _call(
        self, worker: int, method: Method, request: Any, owner: str, timeout: float, more: tuple[Any, ...] = ()
    ) -> Any:
        make: Any = self._channel(worker).unary_unary(
            method.path, request_serializer=method.write, response_deserializer=method.read
        )
        try:
            return await make(request, timeout=timeout, metadata=(*self._metadata(owner), *more))
        except grpc.aio.AioRpcError as error:
            raise self._error(worker, error) from None

    def _channel(self, worker: int) -> grpc.aio.Channel:
        known = self._channels.get(worker)
        if known is None:
            target = f"unix:{self.config.socket(worker)}"
            known = self._channels[worker] = self._network.channel(target, None, _OPTIONS)
        return known

    def _metadata(self, owner: str) -> tuple[tuple[str, str | bytes], ...]:
        return (SECRET_KEY, self.config.secret), (OWNER_KEY, owner.encode())

    def _error(self, worker: int, error: grpc.aio.AioRpcError) -> CallError:
        """Return the error of a call. A worker that has answered has sent a request id."""
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


def _request_id(context: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY)
