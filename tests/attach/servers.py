"""An agent server in a process of its own, which can be killed and started again on its port."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from typing import IO

from tests.ports import quiet_port
from tests.processes import ROOT

AGENTS = ("-m", "tests.attach.agents:agents", "--no-validate")


class ServerProcess:
    """Used as `async with ServerProcess() as server`. What it logs is in `log()`: no pipe fills up."""

    def __init__(self, *arguments: str, agents: tuple[str, ...] = AGENTS, prefix: tuple[str, ...] = ()) -> None:
        self.address = ""
        self.port = quiet_port()
        self.process: subprocess.Popen[str]
        self._arguments = (*agents, "--no-http", "--log-level", "warning", "--json", *arguments)
        self._prefix = prefix
        self._log: IO[str]

    async def __aenter__(self) -> "ServerProcess":
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.end(signal.SIGKILL)
        self._log.close()

    async def start(self) -> None:
        """Start it, each time on the same port, and wait until it is ready."""
        command = [*self._prefix, sys.executable, "-m", "osmosis_grpc.serve", *self._arguments]
        self.process = subprocess.Popen(
            [*command, "--grpc-port", str(self.port)], stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT
        )
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, self.log()
        self.address = json.loads(line)["grpc"]
        self.port = int(self.address.rpartition(":")[2])

    async def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal that ends it, and wait for the end."""
        self.process.send_signal(how)
        code = await asyncio.to_thread(self.process.wait)
        self.process.stdout.close()
        return code

    def signal(self, how: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(how)

    def log(self) -> str:
        """What it logged."""
        self._log.seek(0)
        return self._log.read()
