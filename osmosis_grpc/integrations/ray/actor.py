"""The actor that Ray places on a node. It runs one agent server as a process, and ends when the process ends."""

import importlib
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.supervise import OnFailure, job, thread

WATCH = job("scaleout.watch_server", OnFailure.RESTART, "thread")


class ServerProcess:
    """A process that writes JSON lines to stdout. The constructor waits for the first line or for the process's end.

    `folder` is its working folder, if it exists.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        options: dict[str, Any] = {"cwd": folder} if folder and Path(folder).is_dir() else {}
        self._process = subprocess.Popen(  # noqa: S603 - the command line of the operator
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            **options,
        )
        assert self._process.stdout is not None
        self._records = self._process.stdout
        self._stopping = False
        line = self._records.readline()
        self.ready: dict[str, Any] = json.loads(line) if line else {}
        """The first line; {} if the process ended before it."""
        self.code = None if line else self._wait()
        """The exit code of a process that ended before its first line."""

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Call `on_end` on a thread, with the exit code, when the process ends by itself."""

        def step() -> bool:
            if self._records.readline():
                return True
            code = self._wait()
            if not self._stopping:
                on_end(code)
            return False

        thread(WATCH, step)

    def _wait(self) -> int:
        """Wait for the end, close the pipes, and return the exit code."""
        with self._process:  # closes them
            return self._process.wait()

    def stop(self) -> int:
        """Stop the process with SIGTERM, which shuts it down cleanly, and return its exit code."""
        self._stopping = True
        self._process.terminate()
        return self._process.wait()


log = logging.getLogger(__name__)

STARTS = 5
"""How often the actor starts a server that fails, for example because its port is still taken, before it gives up."""
PAUSE = 1.0
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - addresses that a server may listen on
CHILD = "osmosis_grpc.serve.child"


class RayAgentServer:
    """One agent server. When its process ends, the actor's process ends, too, and Ray restarts both.

    `state` is the parent folder of its journal, or empty for no journal. Each node uses its own subfolder, because two
    nodes must not open one journal, even on a shared disk.
    """

    def __init__(
        self, arguments: Sequence[str], host: str, folder: str, state: str, environment: Mapping[str, str]
    ) -> None:
        ray: Any = importlib.import_module("ray")
        self._context = ray.get_runtime_context()
        ip = str(ray.util.get_node_ip_address())
        listen = host or ip
        command = [sys.executable, "-m", CHILD, *arguments, "--host", listen, "--json"]
        if state:
            command += ["--state-dir", f"{state}-on-{ip}"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this property of Ray uses a deprecated one
            again = self._context.was_current_actor_reconstructed
        self._process = ServerProcess(command, environment, folder)
        for _ in range(STARTS - 1):
            if self._process.ready or not again:
                break
            time.sleep(PAUSE)
            self._process = ServerProcess(command, environment, folder)
        if not self._process.ready:
            if again:
                os._exit(1)
            raise RuntimeError(f"the agent server ended with exit code {self._process.code}; its log says why")
        address = str(self._process.ready["grpc"])
        self.address = f"{ip}:{address.rpartition(':')[2]}" if listen in EVERY_ADDRESS else address
        self._process.watch(self._ended)

    def where(self) -> tuple[str, str]:
        """Return the id of the node, and the HOST:PORT of the server."""
        return self._context.get_node_id(), self.address

    def stop(self) -> int:
        """Shut the server down cleanly, and return its exit code."""
        return self._process.stop()

    def _ended(self, code: int) -> None:
        log.error("the agent server at %s ended with exit code %s", self.address, code)
        os._exit(1)
