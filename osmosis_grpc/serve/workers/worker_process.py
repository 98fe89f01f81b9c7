"""One worker as the supervisor sees it: its process, the messages from it, and how it ended."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from osmosis_grpc.serve.workers import VARIABLE
from osmosis_grpc.supervise import OnFailure, child, job

MAX_LINE = 1024 * 1024
LAST_MESSAGES = 1.0
"""How many seconds to wait for the last messages of a process that has ended."""
READ = job("serve.read_worker", OnFailure.RAISE)

Heard = Callable[["WorkerProcess", dict[str, Any]], None]


class WorkerProcess:
    """A worker. It has one process at a time."""

    def __init__(self, index: int, port: int, lock: int, *, leaving: bool = False) -> None:
        self.index = index
        self.port = port
        self.lock = lock
        """The file descriptor of the lock of its state folder; -1 without a journal."""
        self.leaving = leaving
        """Whether the worker only finishes the rollouts in its folder."""
        self.ready = asyncio.Event()
        """Set while the worker serves."""
        self.said_ready: dict[str, Any] = {}
        """The record `ready` of the newest process; empty if it has sent none."""
        self.banner = ""
        self.said_stopped: dict[str, Any] = {}
        """The record `stopped` of the newest process; empty if it has sent none."""
        self.settled = False
        """Whether the worker has left, because all rollouts in its folder are settled."""
        self.restarting = False
        """Whether the supervisor ends the process in order to start a new one."""
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, command: Sequence[str], env: Mapping[str, str], place: Mapping[str, Any], heard: Heard) -> int:
        """Run a process until it ends, and return its exit code: 128 plus the number of a signal that ended it."""
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [theirs.fileno(), *([self.lock] if self.lock >= 0 else [])]
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**env, VARIABLE: str(theirs.fileno())},
                pass_fds=descriptors,
                process_group=0,  # otherwise a terminal would send each signal to the workers, too
            )
        self.said_ready, self.said_stopped = {}, {}
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE)
        self.tell(**place)

        async def read() -> None:
            with suppress(OSError):
                while line := await reader.readline():
                    heard(self, json.loads(line))

        reading = child(READ, read())
        reading.add_done_callback(self._kill_unread)
        try:
            code = await process.wait()
            await asyncio.wait([reading], timeout=LAST_MESSAGES)  # a forked child of an agent may keep the socket open
            if reading.done():
                reading.result()
            return code if code >= 0 else 128 - code
        finally:
            self.ready.clear()
            reading.cancel()
            self._writer.close()

    def _kill_unread(self, reading: "asyncio.Task[None]") -> None:
        """Kill the process if its messages can no longer be read."""
        if not reading.cancelled() and reading.exception() is not None:
            self.kill()

    def tell(self, **message: Any) -> None:
        """Send a message to the process."""
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The id of the process; 0 without one."""
        return self._process.pid if self._process is not None and self.alive else 0

    def signal(self, number: int) -> None:
        """Send a signal to the process, if one runs."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, if one runs."""
        self.signal(signal.SIGKILL)
