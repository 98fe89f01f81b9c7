"""Transport connects a trainer to its agent servers. Each kind of transport is a subclass.

The list of servers can change while rollouts run, because sources change, and because servers name their workers. The
transport connects to each new server. A server that is no longer in the list is retired: it gets no new rollouts,
finishes its running ones while it can be reached, and is then forgotten.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from osmosis_grpc.network.connection_errors import explained, is_replaced
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.dialled_stream import redial
from osmosis_grpc.network.network import Network
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.storage.ledger import LedgerRollout
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer import log_warnings
from osmosis_grpc.trainer.agent_server_link import AgentServerLink
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.log_warnings import Unreached
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.target_sources import Target, TargetSource

log = logging.getLogger(__name__)

DIAL = job("trainer.dial", OnFailure.RESTART)
RETIRE = job("trainer.retire_server", OnFailure.RESTART)
WATCH = job("trainer.watch_targets", OnFailure.RESTART)
WARN = job("trainer.warn", OnFailure.RESTART)

TARGET = "target "
"""The prefix of the ledger's key for a server to which the trainer connects."""
RETIRE_PERIOD = 0.25
"""The seconds between two checks whether a retired server can be forgotten."""
FIRST_CONNECTION = 10.0
"""A server that only the ledger names is forgotten if it is not reached within this many seconds."""

Link = TypeVar("Link", bound=AgentServerLink)


@dataclass(slots=True, eq=False)
class Dialled(Generic[Link]):
    """A server to which the transport connects."""

    target: Target
    link: Link
    unreached: Unreached
    dialling: asyncio.Task[Any] | None = None
    retiring: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Stop connecting."""
        for task in (self.dialling, self.retiring):
            if task is not None:
                task.cancel()
        self.dialling = self.retiring = None


class Transport(ABC, Generic[Link]):
    """Connects a trainer to its agent servers, from listen() to close()."""

    def __init__(
        self,
        scheduler: Scheduler,
        sources: Sequence[TargetSource],
        *,
        listen: str,
        credentials: Credentials,
        security: ServerSecurity,
        network: Network,
        config: TrainerConfig,
    ) -> None:
        self.address = listen
        """HOST:PORT where the trainer listens; empty if it does not listen. After listen(), it has the bound port."""
        self._scheduler = scheduler
        self._sources = sources
        self._credentials = credentials
        self._security = security
        self._network = network
        self._config = config
        self._begun = False
        self._workers: dict[str, tuple[str, ...]] = {}
        """The addresses of the workers that each server names, by the server's address."""
        self._dialled: dict[str, Dialled[Link]] = {}
        """The servers in the list and the retired servers, by address."""
        self._watching: list[asyncio.Task[Any]] = []

    @abstractmethod
    def listen(self) -> None:
        """Bind the port. Calls are answered only after begin(). Raises OSError, ValueError."""

    @abstractmethod
    def _link(self, target: Target, server_key: str) -> Link:
        """Return a new link to a server. The link is not connected yet."""

    @abstractmethod
    async def _connect(self, server: Dialled[Link], on_answer: Callable[[], None]) -> CallError | None:
        """Connect, call `on_answer` when the server answers, and wait until the connection ends. Raises CallError."""

    def _not_reached(self, server: Dialled[Link]) -> None:
        """React to a server in the list that could not be reached. By default, do nothing."""

    async def find_servers(self) -> None:
        """Read all sources for the first time. Raises WrongList."""
        await asyncio.gather(*(source.first_look() for source in self._sources))
        self._scheduler.servers.why_not_more = lambda: [source.problem for source in self._sources if source.problem]

    def add_servers(self, kept: Iterable[LedgerRollout]) -> None:
        """Add the servers in the list, and as retired ones those that are only in the ledger, with their rollouts."""
        self._update()
        keys = {row.server_key: None for row in kept if row.init is not None and row.server_key.startswith(TARGET)}
        for address in (key.removeprefix(TARGET) for key in keys):
            if address not in self._dialled and self._allowed(address):
                self._add(Target(address))
                self._scheduler.servers.retire(self._dialled[address].link)

    async def begin(self) -> None:
        """Start answering calls, connecting to the servers, and watching the sources."""
        self._begun = True
        for server in list(self._dialled.values()):
            self._dial(server)
            if server.link.retired:
                self._start_retiring(server, of_ledger=True)
        start = self._scheduler.supervisor.start
        self._scheduler.supervisor.every(WARN, log_warnings.EVERY, self._warn)
        changing = [source for source in self._sources if source.period is not None]
        self._watching += [start(WATCH, partial(source.watch, self._update)) for source in changing]

    async def close(self) -> None:
        """End every connection and stop listening."""
        tasks = [*self._watching]
        for server in self._dialled.values():
            tasks += [task for task in (server.dialling, server.retiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The set of servers.

    def _name_workers(self, server: Dialled[Link], addresses: Iterable[str]) -> None:
        """Record the workers that a server names. Workers are used only if a source names the server itself."""
        self._workers[server.target.address] = tuple(addresses)
        self._update()

    def _update(self) -> None:
        wanted = {target.address: target for source in self._sources for target in source.targets or ()}
        self._workers = {address: found for address, found in self._workers.items() if address in wanted}
        for address, workers in self._workers.items():
            for worker in workers:
                wanted.setdefault(worker, replace(wanted[address], address=worker))
        for address, server in self._dialled.items():
            if address not in wanted and not server.link.retired:
                self._retire(server)
        for address, target in wanted.items():
            known = self._dialled.get(address)
            if known is None:
                self._add(target)
            elif known.link.retired:
                self._keep(known, target)
        self._scheduler.changed()

    def _add(self, target: Target) -> None:
        address = target.address
        link = self._link(target, f"{TARGET}{address}")
        unreached = Unreached(link.name, self._scheduler.supervisor.system.monotonic)
        server = self._dialled[address] = Dialled(target, link, unreached)
        self._scheduler.servers.add(link)
        if self._begun:
            log.info("server %s is new", address)
            self._dial(server)

    def _dial(self, server: Dialled[Link]) -> None:
        server.dialling = self._scheduler.supervisor.start(DIAL, partial(self._keep_connected, server))

    def _keep(self, server: Dialled[Link], target: Target) -> None:
        log.info("server %s is named again", target.address)
        if server.retiring is not None:
            server.retiring.cancel()
            server.retiring = None
        server.target = target
        self._scheduler.servers.keep(server.link)

    def _retire(self, server: Dialled[Link]) -> None:
        link = server.link
        rollouts = f"; its {len(link.rollouts)} rollouts may end there" if link.rollouts else ""
        log.info("server %s is no longer named%s", link.name, rollouts)
        self._scheduler.servers.retire(link)
        self._start_retiring(server, of_ledger=False)

    def _start_retiring(self, server: Dialled[Link], *, of_ledger: bool) -> None:
        work = partial(self._forget_when_done, server, of_ledger)
        server.retiring = self._scheduler.supervisor.start(RETIRE, work)

    async def _forget_when_done(self, server: Dialled[Link], of_ledger: bool) -> None:
        """Forget a retired server when nothing needs it any more, or when it cannot be reached.

        A server that only the ledger names, `of_ledger`, gets time for its first connection.
        """
        link, monotonic = server.link, self._scheduler.supervisor.system.monotonic
        began = monotonic()
        while True:
            waits = link.attached or (of_ledger and self._may_come(server, monotonic() - began))
            if link.idle or not waits:
                break
            await asyncio.sleep(RETIRE_PERIOD)
        if link.rollouts:
            log.warning(
                "server %s is no longer named and cannot be reached; its %d rollouts go elsewhere",
                link.name,
                len(link.rollouts),
            )
        if link.attached:
            link.part()
            await asyncio.sleep(RETIRE_PERIOD)  # the last frames are still being sent
        self._dialled.pop(server.target.address, None)
        self._scheduler.remove(link, f"server {link.name} is no longer one of this trainer's servers")
        server.retiring = None
        server.cancel()

    def _may_come(self, server: Dialled[Link], waited: float) -> bool:
        """Return whether to wait longer for a server that only the ledger names.

        A source that has no list yet may still name it, or a server on the same host may name it as a worker.
        """
        host = server.target.address.rpartition(":")[0]
        others = [other for other in self._dialled.values() if not (other.link.retired or other.link.used)]
        named_later = any(source.targets is None for source in self._sources) or any(
            other.target.address.rpartition(":")[0] == host for other in others
        )
        if named_later:
            return waited < self._config.lost_after
        return server.link.problem is None and not server.link.used and waited < FIRST_CONNECTION

    def _allowed(self, address: str) -> bool:
        try:
            self._credentials.check_target(address)
        except ValueError:
            return False
        return True

    def _credentials_for(self, target: Target) -> Credentials:
        tls = self._credentials.tls
        if tls is None or tls.server_name or not target.certificate_name:
            return self._credentials
        return replace(self._credentials, tls=replace(tls, server_name=target.certificate_name))

    # The connection to one server.

    async def _keep_connected(self, server: Dialled[Link]) -> None:
        """Reconnect whenever the connection ends, with growing pauses.

        Stop if another stream of this attachment has replaced this one. Otherwise two processes would replace each
        other's streams forever.
        """
        link = server.link

        async def attempt() -> CallError | None:
            try:
                return await self._connect(server, server.unreached.reached)
            except CallError as error:
                raise await explained(link.name, self._credentials, error) from None

        def ended(error: CallError | None, pause: float) -> None:
            link.problem = error
            for source in self._sources:
                source.hurry()
            if not self._scheduler.servers.parting and not link.retired:
                server.unreached.failed(error)
                self._scheduler.servers.not_reached(link, error)
                self._not_reached(server)
                self._scheduler.changed()

        system, pauses = self._scheduler.supervisor.system, self._config.pauses
        await redial(attempt, ended, system=system, pauses=pauses, is_final=is_replaced)

    def _warn(self) -> None:
        """Log a warning for each server that cannot be reached, and one if all servers are draining."""
        for server in self._dialled.values():
            dialling = server.dialling is not None and not server.dialling.done()
            if dialling and not (server.link.attached or server.link.retired or self._scheduler.servers.parting):
                server.unreached.warn()
        self._scheduler.warn_if_all_drain()
