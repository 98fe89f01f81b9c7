"""The actor that Ray places on a node. It starts one agent server in a process, and notices when the process ends."""

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
    """A process that writes one JSON record on each line of stdout. Waits for the first record, or for its end.

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
        """The first record. Empty if the process ended before it."""
        self.code = None if line else self._wait()
        """The exit code of a process that has ended before its first record."""

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Call `on_end` with the exit code when the process ends by itself. A thread calls it."""

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
        """Stop the process in good order with SIGTERM. Returns its exit code."""
        self._stopping = True
        self._process.terminate()
        return self._process.wait()


log = logging.getLogger(__name__)

STARTS = 5
"""After a failure, a server is started so many times before Ray starts the actor again. Its port may still be taken."""
PAUSE = 1.0
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - addresses that a server may listen on
CHILD = "osmosis_grpc.serve.child"


class RayAgentServer:
    """One agent server. When its process ends, the actor's process ends, too, and Ray starts both again.

    `state` is the folder of its journal without the node: each node has a folder of its own, also on a shared disk,
    because two nodes must not open one journal. It is empty for a server without a journal.
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
            warnings.simplefilter("ignore")  # Ray's own property uses a deprecated one
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
        """Stop the server in good order, as SIGTERM does. Returns its exit code."""
        return self._process.stop()

    def _ended(self, code: int) -> None:
        log.error("the agent server at %s ended with exit code %s", self.address, code)
        os._exit(1)
