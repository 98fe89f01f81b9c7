"""Several workers of one server in this process, with the real sockets between them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from osmosis_gateway.http_server import serve_http
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.server.workers.config import WorkersConfig
from osmosis_grpc.trainer import RolloutClient
from tests.ports import quiet_port

SECRET = "canary-secret-of-the-workers"


class Cluster:
    """The workers, and the address of worker 0 for HTTP. stop() ends one worker as a crash does."""

    def __init__(self, servers: Sequence[AgentServer], stacks: Sequence[AsyncExitStack], http: str) -> None:
        self.servers = servers
        self.http = http
        self._stacks = stacks

    def client(self, worker: int = 0, **credentials) -> RolloutClient:
        return RolloutClient(self.servers[worker].address, **credentials)

    async def stop(self, worker: int) -> None:
        await self._stacks[worker].aclose()

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
    with TemporaryDirectory(prefix="osmosis-test-") as sockets:
        async with AsyncExitStack() as whole:
            servers, stacks, address = [], [], ""
            for index in range(count):
                config = WorkersConfig(index=index, ports=ports, accepting=count, secret=SECRET, sockets=Path(sockets))
                stack = await whole.enter_async_context(AsyncExitStack())
                folder = None if state is None else state / "workers" / str(index) if index else state
                server = AgentServer(agents, port=ports[index], security=security, workers=config, state_dir=folder)
                servers.append(await stack.enter_async_context(server))
                if http:
                    served = await stack.enter_async_context(serve_http(server, port=0))
                    address = address or f"http://{served.address}"
                stacks.append(stack)
            yield Cluster(servers, stacks, address)
