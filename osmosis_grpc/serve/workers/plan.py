"""Plans the workers of a server before anything starts: ports, state folders and their locks."""

import shutil
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.network.free_ports import check_free, hold_ports
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.lock_file import Lock
from osmosis_grpc.storage.state_folders import worker_folder, worker_folders

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

LONGEST = 80
"""The longest path of a folder for sockets. The system allows about 100 characters for the path of a socket."""

FREED = 1.0
"""A process closes its port within this many seconds after it has released its lock, because gRPC closes ports on its
own thread."""


@dataclass
class Plan:
    """The workers that the supervisor starts, and what it holds for them until close()."""

    accepting: int
    """The workers below this number accept rollouts. The others only finish those in their folders."""
    ports: dict[int, int]
    held: list[socket.socket]
    """The sockets that reserve the ports, even while a worker restarts."""
    locks: dict[int, Lock] = field(default_factory=dict)
    """The locks of the state folders, by worker; empty without a journal."""
    sockets: Path = field(default_factory=lambda: _socket_folder())
    made: list[Path] = field(default_factory=list)
    """The state folders that this process has made."""

    def close(self, *, started: bool) -> None:
        """Release the locks and the ports, and remove the sockets. If nothing has started, remove new state folders."""
        for holder in self.held:
            holder.close()
        for lock in self.locks.values():
            lock.close()
        if not started:
            from osmosis_grpc.storage.journal.schema import LOCK

            for folder in reversed(self.made):
                with suppress(OSError):
                    if [path.name for path in folder.iterdir()] == [LOCK]:
                        (folder / LOCK).unlink()
                    folder.rmdir()
        shutil.rmtree(self.sockets, ignore_errors=True)


def unfinished_beyond(options: "RolloutServerSettings") -> list[int]:
    """Return the workers beyond --workers whose folders have unsettled rollouts."""
    state = options.state_folder
    folders = {} if state is None else worker_folders(state)
    return [worker for worker, folder in folders.items() if worker >= options.workers and _is_unfinished(folder)]


def _is_unfinished(folder: Path) -> bool:
    from osmosis_grpc.storage import Reader
    from osmosis_grpc.storage.journal.schema import FILE

    if not (folder / FILE).exists():
        return False
    try:
        reader = Reader.look(folder)
    except JournalError:
        return True  # when the worker starts, it reports what is wrong
    try:
        return reader.has_unsettled()
    finally:
        reader.close()


def plan(options: "RolloutServerSettings", leaving: list[int]) -> Plan:
    """Check the options, and return the plan. Raises OptionError."""
    if options.reload:
        raise OptionError("{reload} goes with one process: leave out {workers}, or {reload}")
    if not options.legacy_listen.endswith(":0"):
        raise OptionError("{legacy_listen} needs the port 0 with {workers}, because each worker has its own port")
    workers = [*range(options.workers), *leaving]
    held = _held(options, workers)
    ports = {worker: int(holder.getsockname()[1]) for worker, holder in zip(workers, held, strict=True)}
    with ExitStack() as stack:
        made = Plan(options.workers, ports, held)
        stack.callback(made.close, started=False)
        state = options.state_folder
        if state is not None:
            for worker in workers:
                _lock(made, worker, worker_folder(state, worker))
        stack.pop_all()
    return made


def _lock(made: Plan, worker: int, folder: Path) -> None:
    from osmosis_grpc.storage.journal.schema import JOURNAL, LOCK
    from osmosis_grpc.storage.sqlite.database import explained

    try:
        with explained(JOURNAL, folder, "stop it"):
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.made += reversed(missing)
            made.locks[worker] = Lock(folder / LOCK)
    except JournalError as error:
        raise OptionError(
            "{error}; {state_dir} chooses another folder, {no_journal} keeps no journal", error=error
        ) from None


def _held(options: "RolloutServerSettings", workers: list[int]) -> list[socket.socket]:
    """Return sockets that reserve the ports of the workers. Raises OptionError if a port is not free."""
    first = options.grpc_port
    try:
        if not first:
            return hold_ports(options.host, [0] * len(workers))
        ports = {worker: first + worker for worker in workers}
        if max(ports.values()) > 65535:
            raise OptionError(
                "{grpc_port} {first} with {workers} {count} needs ports above 65535", first=first, count=len(workers)
            )
        for name in ("http_port", "metrics_port", "view_port"):
            if name in options.model_fields_set and getattr(options, name) in ports.values():
                raise OptionError(
                    f"{{{name}}} {{port}} is the port of a worker: {{grpc_port}} {{first}} with {{workers}} takes the "
                    "ports {first} to {last}",
                    port=getattr(options, name),
                    first=first,
                    last=max(ports.values()),
                )
        for worker, port in ports.items():
            try:
                _await_free(options.host, port)
            except OSError as error:
                needs = f"worker {worker} needs it"
                if worker >= options.workers:
                    folder = worker_folder(Path(options.state_dir), worker)
                    needs += f" to finish the rollouts of an earlier run, which are in {folder}"
                text = "{error}; {needs}: {grpc_port} chooses the first of {count} ports"
                raise OptionError(text, error=error, needs=needs, count=len(workers)) from None
        return hold_ports(options.host, [*ports.values()])
    except OSError as error:
        raise OptionError("{host} {value}: {error}", value=options.host, error=error) from None


def _await_free(host: str, port: int) -> None:
    """Check that a port is free. Raises OSError if it is not free within FREED seconds."""
    end = time.monotonic() + FREED
    while True:
        try:
            return check_free(host, port)
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def _socket_folder() -> Path:
    """Make a folder that only this user can read."""
    folder = Path(tempfile.mkdtemp(prefix="osmosis-workers-"))
    if len(str(folder)) > LONGEST:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="osmosis-workers-", dir="/tmp"))
    return folder
