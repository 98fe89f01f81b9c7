"""Keeps a connection to an agent server, whatever the transport."""

from collections.abc import Awaitable, Callable

from osmosis_grpc.errors import CallError
from osmosis_grpc.link.connection_errors import explained
from osmosis_grpc.link.credentials import Credentials
from osmosis_grpc.link.dialled_stream import redial
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_link import AgentServerLink
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.unreachable import Unreached

DIAL = job("trainer.dial", OnFailure.RESTART)

TARGET = "target "
"""Begins the ledger's key of a server that the trainer connects to."""

Connect = Callable[[Callable[[], None]], Awaitable[CallError | None]]
"""Runs a connection to its end. Gets a function to call when the server has answered."""


class Dialler:
    """Connects one trainer to the servers that it names."""

    def __init__(self, scheduler: Scheduler, credentials: Credentials, config: TrainerConfig) -> None:
        self.leaving = False
        """Whether connections that end now are not lost."""
        self._scheduler = scheduler
        self._credentials = credentials
        self._config = config

    async def keep_connected(self, server: AgentServerLink, connect: Connect) -> None:
        """Call `connect` again and again, with pauses that grow. Warns while the server cannot be reached."""
        unreached = Unreached(server.name, self._scheduler.supervisor)

        async def attempt() -> CallError | None:
            unreached.trying()
            try:
                return await connect(unreached.reached)
            except CallError as error:
                raise await explained(server.name, self._credentials, error) from None

        def ended(error: CallError | None, pause: float) -> None:
            server.problem = error
            if not self.leaving:
                unreached.failed(error)
                self._scheduler.servers.not_reached(server, error)

        try:
            await redial(attempt, ended, pauses=self._config.pauses)
        finally:
            unreached.close()
