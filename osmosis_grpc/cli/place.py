"""Where rollouts are: in a run, in a folder, or on a server. Every command that reads rollouts takes --from.

--from takes one of these, tried in this order:

- a folder: a server's state folder, or the folder of a run of test, eval or fork
- HOST:PORT: a running server
- `last`, the name of a run below .osmosis/runs, or a unique prefix of its name or of its id

Without --from, a command reads the state folder or the newest run, whichever is newer. If there is neither, it reads
the server on this machine. If there are several, it prints which one it reads.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import say_error, usage_error
from osmosis_grpc.settings.option import PREFIX, host_port
from osmosis_grpc.settings.server_options import ServerOptions

JOURNAL = "journal.db"
RUNS = Path(".osmosis/runs")
"""The folder where test and eval keep their runs."""
MEMORY = ":memory:"
"""The name of a journal in memory."""
SERVER = "127.0.0.1:50051"
"""The server that commands call if no option names another one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, or a running server."""

    folder: Path | None = None
    server: str = ""
    """HOST:PORT."""
    why: str = ""
    """Why the command chose this server although no option names it; otherwise empty."""

    @property
    def words(self) -> str:
        """The --from option that names this place, quoted for a shell."""
        if self.folder is None:
            return f"--from {self.server}"
        from osmosis_grpc.records.evaluate.run_folder import short_name

        return f"--from {shlex.quote(short_name(self.folder))}"


def place_of(command: str, name: str | None) -> Place:
    """Return the place that --from names, or the newest one. An unknown name ends the command with exit code 2."""
    if name is None:
        return _newest(command)
    if name == MEMORY:
        usage_error(command, "a journal in memory is gone with its server; --from names one on disk")
    if not Path(name).is_dir() and ":" in name:
        try:
            return Place(server=host_port(name))
        except ValueError as error:
            usage_error(command, printable(f"--from: {error}"))
    if Path(name).is_dir():
        return Place(Path(name))
    from osmosis_grpc.records.evaluate.errors import RunError
    from osmosis_grpc.records.evaluate.run_folder import RunFolder

    try:
        return Place(RunFolder.find(name))
    except RunError as error:
        usage_error(command, printable(f"--from: {error}; a server is HOST:PORT"))


def folder_of(command: str, name: str | None, why_not: str) -> Path:
    """Return the folder that --from names, or the newest one. A server ends the command with the message `why_not`."""
    place = place_of(command, name)
    if place.folder is None:
        usage_error(command, f"{place.why}; --from names a folder" if place.why else why_not)
    return place.folder


def _newest(command: str) -> Place:
    """Return the newer one of the state folder and the newest run; if there is neither, the server on this machine."""
    state = usual_folder(command)
    runs = sorted(path.parent for path in RUNS.glob(f"*/{JOURNAL}") if ".archive-" not in path.parent.name)
    known = [folder for folder in (state, *runs[-1:]) if folder is not None and (folder / JOURNAL).exists()]
    if not known:
        journal = "" if state is None else f"no journal in {state} and "
        why = f"there is {journal}no run in {RUNS}"
        return Place(server=SERVER, why=why)
    place = Place(max(known, key=_changed))
    if len(known) > 1 or len(runs) > 1:
        say_error(printable(f"{command}: reads the newest, {place.folder}; --from names another"))
    return place


def _changed(folder: Path) -> float:
    """Return when a journal was last written, in Unix seconds. Ignore empty files, which a reader may have created."""
    found = [(folder / f"{JOURNAL}{end}").stat() for end in ("", "-wal") if (folder / f"{JOURNAL}{end}").exists()]
    return max((each.st_mtime for each in found if each.st_size), default=0.0)


def sets_options() -> bool:
    """Return whether a variable or the file .env may set an option. If not, all options have their defaults."""
    # If the settings are imported already, reading them is fast, and configure() may have been called.
    known = "osmosis_grpc.settings.settings" in sys.modules
    return known or Path(".env").exists() or any(name.upper().startswith(PREFIX) for name in os.environ)


def state_folder(command: str, state_dir: str | None) -> Path:
    """Return the folder that --state-dir names, or else the folder of the settings.

    If the folder cannot be used, the command ends with exit code 2.
    """
    folder = usual_folder(command) if state_dir is None else None if state_dir == MEMORY else Path(state_dir)
    if folder is None:
        usage_error(command, "a journal in memory is gone with its server; --state-dir DIR names one on disk")
    return folder


def usual_folder(command: str) -> Path | None:
    """Return the folder of the settings, or None if they name a journal in memory.

    Wrong settings end the command with exit code 2.
    """
    if not sets_options():
        return Path(ServerOptions.state_dir)
    from pydantic import ValidationError

    from osmosis_grpc.settings.settings import get_settings, problems

    try:
        chosen = get_settings().server.state_dir
    except ValidationError as error:
        usage_error(command, problems(error))
    return None if chosen == MEMORY else Path(chosen)
