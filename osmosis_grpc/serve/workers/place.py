"""A worker's side of its connection to the supervisor: its place among the workers, and the messages.

A message is one line with a JSON object. The first message has the place and the secret of the workers, so that the
secret is in no command line and no environment. The connection ends when the supervisor ends.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.serve.json_output import Records
from osmosis_grpc.storage.state_folders import worker_folder
from osmosis_grpc.supervise import OnFailure, job, thread

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings, RolloutSettings

LISTEN = job("serve.listen_to_supervisor", OnFailure.RESTART, "thread")


class Connection:
    """The connection to the supervisor. `send` may be called by any thread."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any] | None:
        """Wait for the next message, and return it. Return None when the supervisor has ended."""
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        if not line:
            self.close()
            return None
        return dict(json.loads(line))

    def close(self) -> None:
        """Close the connection. Later messages are not sent."""
        self._lines.close()
        self._socket.close()

    def send(self, event: str, **fields: Any) -> None:
        """Send a message. Do nothing if the supervisor has ended."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._socket.sendall(data)


class ToSupervisor(Records):
    """Sends the records and texts of this process to the supervisor, which combines those of all workers."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(None)
        self._connection = connection

    def write(self, event: str, **fields: Any) -> None:
        """Send a record."""
        self._connection.send(event, **fields)

    def say(self, text: str, colour: str = "") -> None:
        """Send a text."""
        self._connection.send("text", text=text)


@dataclass(frozen=True)
class Place:
    """The place of this process among the workers of a server."""

    index: int
    """The number of this worker, from 0."""
    ports: Mapping[int, int]
    """The gRPC port of each worker, by its number."""
    accepting: int
    """The workers below this number accept new rollouts."""
    secret: str
    """Workers authenticate to each other with it."""
    sockets: Path
    """The folder with the sockets over which workers call each other."""
    lock: int
    """The file descriptor of the lock of this worker's state folder; -1 without a journal."""
    draining: bool
    """Whether the server was draining when this process started."""
    connection: Connection

    @property
    def leaving(self) -> bool:
        """Whether this worker only finishes the rollouts in its folder, and then ends."""
        return self.index >= self.accepting

    def settings(self, settings: "RolloutSettings") -> "RolloutSettings":
        """Return the settings of this worker."""
        options = settings.server
        own: dict[str, Any] = {"grpc_port": self.ports[self.index], "workers": 1}
        if self.lock >= 0:
            own["state_dir"] = str(worker_folder(Path(options.state_dir), self.index))
        if options.log is not None:
            own["log"] = options.log / f"worker-{self.index}"
        return settings.model_copy(update={"server": options.model_copy(update=own)})

    def send_error(self, text: str) -> None:
        """Send an error of the start to the supervisor, which prints or logs it."""
        self.connection.send("problem", text=text)

    def listen(self, heard: Callable[[dict[str, Any] | None], None]) -> None:
        """Call `heard` with each message of the supervisor, and with None after its end.

        A thread calls `heard`, so that this works even while an agent's code blocks the event loop.
        """

        def step() -> bool:
            message = self.connection.read()
            heard(message)
            return message is not None

        thread(LISTEN, step)


def place_of(descriptor: str) -> Place:
    """Return the place that the supervisor sends over a file descriptor."""
    connection = Connection(int(descriptor))
    first = connection.read()
    if first is None:
        raise SystemExit(1)  # the supervisor has ended
    return Place(
        index=first["index"],
        ports=ports_of(first),
        accepting=first["accepting"],
        secret=first["secret"],
        sockets=Path(first["sockets"]),
        lock=first["lock"],
        draining=first["draining"],
        connection=connection,
    )


def ports_of(message: Mapping[str, Any]) -> dict[int, int]:
    """Return the ports of all workers in a message of the supervisor."""
    return {int(index): int(port) for index, port in message["ports"].items()}


def share_lock(place: Place, options: "RolloutServerSettings") -> None:
    """Take the lock of the state folder over from the supervisor."""
    from osmosis_grpc.storage.journal.schema import LOCK
    from osmosis_grpc.storage.lock_file import share

    if place.lock >= 0:
        share(Path(options.state_dir) / LOCK, place.lock)
