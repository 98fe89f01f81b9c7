"""The simulated network: hosts, delays, partitions, and what the product uses instead of the sockets of grpc.aio.

Faults of the network are methods of Network: block(), heal(), cut(), half_open(). Each channel has one connection at a
time. A connection that the other side has lost silently fails after KEEPALIVE seconds, as pings would show.
"""

import contextvars
from collections.abc import Iterable
from typing import Any

from tests.simulation.channel import SimulatedChannel
from tests.simulation.loop import CURRENT, SimulatedLoop
from tests.simulation.processes import Process, Randomness
from tests.simulation.server import SimulatedServer
from tests.simulation.taps import Taps
from tests.simulation.wire import Connection, Pipe

KEEPALIVE = 30.0, 60.0
"""A half-open connection is noticed after so many seconds, at least and at most."""


class Network:
    """Carries all calls of a world."""

    def __init__(
        self, loop: SimulatedLoop, randomness: Randomness, taps: Taps, *, latency: float, jitter: float
    ) -> None:
        self.loop = loop
        self.taps = taps
        self.context = contextvars.Context()
        self.listeners: dict[str, SimulatedServer] = {}
        """The listening servers, by HOST:PORT."""
        self.connections: dict[Connection, None] = {}
        self.latency, self.jitter = latency, jitter
        self.lossy = 0.0
        """The share of calls that break before their end."""
        self._random = randomness("network")
        self._losses = randomness("network losses")
        self._blocked: set[tuple[str, str]] = set()
        self._held: dict[Pipe, None] = {}
        self._ports = 40_000

    def delay(self, sender: str, receiver: str) -> float:
        """Returns the seconds that the next message takes."""
        if sender == receiver:
            return 1e-5
        return self.latency * (0.5 + self._random.random()) + self.jitter * self._random.random() ** 8

    def lifetime(self) -> float | None:
        """Returns after how many seconds a new unary call breaks; None for a call that does not break by itself."""
        if self.lossy and self._losses.random() < self.lossy:
            return self._losses.random() ** 2 * 2 * (self.latency + self.jitter + 0.01)
        return None

    def blocked(self, sender: str, receiver: str) -> bool:
        """Returns whether messages from one host to another are held back."""
        return bool(self._blocked) and (sender, receiver) in self._blocked

    def hold(self, pipe: Pipe) -> None:
        """Remembers a pipe with messages that are held back."""
        self._held[pipe] = None

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Holds back all messages from one host to another, for each pair."""
        self._blocked.update(pairs)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Delivers what was held back for these pairs of hosts; for all pairs without an argument."""
        self._blocked.difference_update(self._blocked.copy() if pairs is None else pairs)
        held, self._held = self._held, {}
        for pipe in held:
            pipe.retry()

    def half_open(self, connection: Connection) -> None:
        """Breaks the server's end of a connection. The client's end notices it after KEEPALIVE, or when it closes."""
        connection.cut_server()
        self.loop.call_later(self._random.uniform(*KEEPALIVE), connection.cut_client, context=self.context)

    def gone(self, process: Process, *, silently: bool) -> None:
        """Breaks the connections of a killed process. With `silently`, the other sides notice it after KEEPALIVE."""
        for address, server in list(self.listeners.items()):
            if server.process is process:
                del self.listeners[address]
        for connection in list(self.connections):
            if process not in (connection.client, connection.server):
                continue
            after = self._random.uniform(*KEEPALIVE) if silently else self.delay("", process.host)
            other = connection.cut_server if connection.client is process else connection.cut_client
            self.loop.call_later(after, other, context=self.context)

    def port(self) -> int:
        """Returns a new port."""
        self._ports += 1
        return self._ports


class ProcessNetwork:
    """The network of the running process, in place of osmosis_grpc.network.network.GrpcNetwork."""

    def server(self, connections: int | None = None, max_age: float | None = None) -> Any:
        """Returns a server of the running process. Its connections have no limits."""
        process = _running()
        return SimulatedServer(process.network, process)

    def listen(self, server: SimulatedServer, address: str, security: object) -> str:
        """Binds a server to HOST:PORT. Raises OSError if a living process listens there."""
        network: Network = server.process.network
        host, _, port = address.rpartition(":")
        address = f"{host}:{network.port() if port == '0' else port}"
        if address in network.listeners:
            raise OSError(f"cannot listen on {address}: the port is in use")
        server.address = address
        network.listeners[address] = server
        return address

    def channel(self, target: str, tls: object, options: object) -> Any:
        """Returns a channel of the running process."""
        process = _running()
        return SimulatedChannel(process.network, process, target.removeprefix("ipv4:"))


def _running() -> Process:
    process = CURRENT.get()
    assert isinstance(process, Process)
    return process
