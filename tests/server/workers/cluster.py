"""Several workers of one server in this process, with the real sockets between them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from osmosis_gateway.http_server import serve_http
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import call
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.server.workers.siblings import WorkersConfig
from osmosis_grpc.storage.state_folders import worker_folder
from osmosis_grpc.trainer import RolloutClient
from tests.ports import quiet_port

SECRET = "canary-secret-of-the-workers"


class Cluster:
    """The workers, and the address of worker 0 for HTTP. stop() ends one worker as a crash does."""

    def __init__(
        self, start: Callable[[int], Awaitable[AgentServer]], stacks: dict[int, AsyncExitStack], ports: dict[int, int]
    ) -> None:
        self.servers: list[AgentServer] = []
        self._ports = ports
        self.http = ""
        self._start = start
        self._stacks = stacks

    def client(self, worker: int = 0, **credentials) -> RolloutClient:
        return RolloutClient(self.servers[worker].address, **credentials)

    async def call(self, worker: int, method: str, request) -> Any:
        """Call a method at a worker. A refused call is not repeated, as a client of the project would."""
        options = client_options(grpc__enable_retries=0, grpc__use_local_subchannel_pool=1)
        async with grpc.aio.insecure_channel(self.servers[worker].address, options) as channel:
            return await call(getattr(services_pb2_grpc.RolloutServiceStub(channel), method), request, timeout=30)

    async def stop(self, worker: int) -> None:
        await self._stacks[worker].aclose()

    async def leave(self, worker: int) -> None:
        """End a worker for good, as one beyond --workers does: the others no longer know it."""
        del self._ports[worker]
        await self.stop(worker)

    async def start(self, worker: int) -> None:
        """Start a worker again that was stopped."""
        self.servers[worker] = await self._start(worker)

    def holders(self, rollout_id: str) -> list[int]:
        """The workers that have a rollout."""
        return [
            worker
            for worker, server in enumerate(self.servers)
            if server.engine.context.table.highest(rollout_id) is not None
        ]


@asynccontextmanager
async def workers(
    agents: Sequence,
    count: int = 3,
    *,
    security: ServerSecurity | None = None,
    state: Path | None = None,
    http: bool = False,
) -> AsyncIterator[Cluster]:
    """Start workers. Each hosts the same agents."""
    ports = {worker: quiet_port() for worker in range(count)}
    stacks: dict[int, AsyncExitStack] = {}
    with TemporaryDirectory(prefix="osmosis-test-") as sockets:
        async with AsyncExitStack() as whole:

            async def start(index: int) -> AgentServer:
                config = WorkersConfig(index=index, ports=ports, accepting=count, secret=SECRET, sockets=Path(sockets))
                stack = stacks[index] = await whole.enter_async_context(AsyncExitStack())
                folder = None if state is None else worker_folder(state, index)
                server = AgentServer(agents, port=ports[index], security=security, workers=config, state_dir=folder)
                await stack.enter_async_context(server)
                if http:
                    served = await stack.enter_async_context(serve_http(server, port=0))
                    cluster.http = cluster.http or f"http://{served.address}"
                return server

            cluster = Cluster(start, stacks, ports)
            for index in range(count):
                cluster.servers.append(await start(index))
            yield cluster
