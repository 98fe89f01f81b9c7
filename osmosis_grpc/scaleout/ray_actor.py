"""The actor that Ray places on a node. It starts one agent server there as a process."""

import importlib
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.supervise import OnFailure, job, thread

log = logging.getLogger(__name__)

WATCH = job("scaleout.watch_server", OnFailure.RESTART, "thread")

STARTS = 5
"""After a failure, a server is started so many times before Ray starts the actor again. Its port may still be taken."""
PAUSE = 1.0
"""Seconds between two starts."""
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
        self._ip = str(ray.util.get_node_ip_address())
        listen = host or self._ip
        command = [sys.executable, "-m", CHILD, *arguments, "--host", listen, "--json"]
        if state:
            command += ["--state-dir", f"{state}-on-{self._ip}"]
        options: dict[str, Any] = {"env": {**os.environ, **environment}, "text": True}
        if Path(folder).is_dir():
            options["cwd"] = folder
        self._stopping = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own property uses a deprecated one
            again = self._context.was_current_actor_reconstructed
        self._process: subprocess.Popen[str]
        for left in reversed(range(STARTS if again else 1)):
            self._process = subprocess.Popen(  # noqa: S603 - the command line of the operator
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
            )
            assert self._process.stdout is not None
            ready = self._process.stdout.readline()
            if ready:
                break
            code = self._process.wait()
            if not again:
                raise RuntimeError(f"the agent server ended with exit code {code}; its log says why")
            if not left:
                os._exit(1)
            time.sleep(PAUSE)
        address = json.loads(ready)["grpc"]
        self.address = f"{self._ip}:{address.rpartition(':')[2]}" if listen in EVERY_ADDRESS else address
        thread(WATCH, self._watch)

    def where(self) -> tuple[str, str]:
        """Returns the id of the node, and the HOST:PORT of the server."""
        return self._context.get_node_id(), self.address

    def stop(self) -> int:
        """Stop the server in good order, as SIGTERM does. Returns its exit code."""
        self._stopping = True
        self._process.terminate()
        return self._process.wait()

    def _watch(self) -> bool:
        """Read the records of the server until its end."""
        assert self._process.stdout is not None
        if self._process.stdout.readline():
            return True
        code = self._process.wait()
        if not self._stopping:
            log.error("the agent server at %s ended with exit code %s", self.address, code)
            os._exit(1)
        return False
