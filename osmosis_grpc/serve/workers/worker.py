"""What the process of a worker does besides serving: it obeys the supervisor and reports to it."""

import asyncio
import math
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from osmosis_grpc.serve.json_output import Records
from osmosis_grpc.serve.workers.place import Place, ToSupervisor, ports_of, share_lock
from osmosis_grpc.server import AgentServer
from osmosis_grpc.server.workers.siblings import WorkersConfig
from osmosis_grpc.supervise import OnFailure, job

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

LEAVE = job("serve.leave", OnFailure.FAIL_OWNER)


class SupervisorEnded(Exception):
    """The supervisor has ended without stopping its workers."""


class Worker:
    """One worker. Call listen() first, and begin() when the worker serves."""

    def __init__(self, place: Place, options: "RolloutServerSettings", out: Records) -> None:
        self.place = place
        self.out = ToSupervisor(place.connection)
        self.failure: SupervisorEnded | None = None
        """Set when the supervisor has ended."""
        self.restarts = False
        """Whether the supervisor ends this process in order to start a new one."""
        self._limit = options.drain_timeout
        self._ports = dict(place.ports)
        self.config = WorkersConfig(
            index=place.index, ports=self._ports, accepting=place.accepting, secret=place.secret, sockets=place.sockets
        )
        share_lock(place, options)

    @property
    def is_first(self) -> bool:
        """Whether this worker has the HTTP port, the metrics port and the viewer of the server."""
        return self.place.index == 0

    def listen(self, stop: asyncio.Event, end_after: Callable[[float], None]) -> None:
        """Obey the supervisor: set `stop` when this process must stop, and end it with `end_after` if it does not."""
        loop = asyncio.get_running_loop()
        self._stop = stop

        def heard(message: dict[str, Any] | None) -> None:
            if message is None:
                self.failure = SupervisorEnded("the supervisor has ended")
                end_after(0.0)
                loop.call_soon_threadsafe(stop.set)
            elif "restart" in message:
                self.restarts = True
                end_after(self._limit)
                loop.call_soon_threadsafe(stop.set)
            elif "ports" in message:
                loop.call_soon_threadsafe(self._learn, ports_of(message))

        self.place.listen(heard)

    def clean(self) -> None:
        """Remove the folder of the sockets, because the supervisor has ended and cannot do it."""
        shutil.rmtree(self.place.sockets, ignore_errors=True)

    def _learn(self, ports: dict[int, int]) -> None:
        self._ports.clear()
        self._ports.update(ports)

    async def begin(self, server: AgentServer) -> None:
        """Report drains to the supervisor. Drain if the server is draining, or if this worker is beyond --workers.

        A worker beyond --workers leaves when its rollouts are settled.
        """
        server.on_drain = lambda on: self.place.connection.send("drain", on=on)
        if self.place.leaving or self.place.draining:
            await server.drain()
        if self.place.leaving:
            server.supervisor.start(LEAVE, lambda: self._leave(server))

    async def _leave(self, server: AgentServer) -> None:
        await server.engine.shutdown.drained(math.inf)
        self.place.connection.send("settled")
        self._stop.set()
