"""Transport connects a trainer to its named agent servers. Each transport has a subclass."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from osmosis_grpc.errors import CallError
from osmosis_grpc.link.connection_errors import explained, is_replaced
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.link.dialled_stream import redial
from osmosis_grpc.link.network import Network
from osmosis_grpc.link.server_security import ServerSecurity
from osmosis_grpc.storage.ledger import LedgerRollout
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_state import AgentServerLink
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.unreachable_warnings import Unreached

DIAL = job("trainer.dial", OnFailure.RESTART)

TARGET = "target "
"""The prefix of the ledger's key for a server to which the trainer connects."""

Link = TypeVar("Link", bound=AgentServerLink)


class Transport(ABC, Generic[Link]):
    """Connects a trainer to its agent servers, from listen() to close()."""

    def __init__(
        self,
        scheduler: Scheduler,
        targets: Sequence[str],
        *,
        listen: str,
        credentials: Credentials,
        security: ServerSecurity,
        network: Network,
        config: TrainerConfig,
    ) -> None:
        self.address = listen
        """HOST:PORT where the trainer listens, with the bound port after listen(). Empty if the trainer only dials."""
        self._scheduler = scheduler
        self._targets = targets
        self._credentials = credentials
        self._security = security
        self._network = network
        self._config = config
        self._links: list[Link] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @abstractmethod
    def listen(self) -> None:
        """Bind the port. Calls are answered after begin(). Raises OSError, ValueError."""

    @abstractmethod
    def _link(self, name: str, server_key: str) -> Link:
        """Returns a new link to a server. The link is not connected yet."""

    @abstractmethod
    async def _connect(self, link: Link, on_answer: Callable[[], None]) -> CallError | None:
        """Connect, and wait until the connection ends. Calls `on_answer` when the server answers. Raises CallError."""

    def add_servers(self, kept: Iterable[LedgerRollout]) -> None:
        """Add the named servers. A subclass may also add servers to which the rollouts in `kept` were sent."""
        self._links = [self._link(target, f"{TARGET}{target}") for target in self._targets]
        self._scheduler.servers.add(*self._links)

    async def begin(self) -> None:
        """Answer calls and connect to the servers."""
        start = self._scheduler.supervisor.start
        self._tasks += [start(DIAL, partial(self._keep_connected, link)) for link in self._links]

    async def close(self) -> None:
        """End every connection and stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_connected(self, link: Link) -> None:
        """Connect again after each connection, with growing pauses. Logs warnings while the server is not reached.

        Ends if another stream of this attachment has replaced the stream: two owners would replace each other for ever.
        """
        unreached = Unreached(link.name, self._scheduler.supervisor)

        async def attempt() -> CallError | None:
            unreached.trying()
            try:
                return await self._connect(link, unreached.reached)
            except CallError as error:
                raise await explained(link.name, self._credentials, error) from None

        def ended(error: CallError | None, pause: float) -> None:
            link.problem = error
            if not self._scheduler.servers.parting:
                unreached.failed(error)
                self._scheduler.servers.not_reached(link, error)

        try:
            system, pauses = self._scheduler.supervisor.system, self._config.pauses
            await redial(attempt, ended, system=system, pauses=pauses, is_final=is_replaced)
        finally:
            unreached.close()
