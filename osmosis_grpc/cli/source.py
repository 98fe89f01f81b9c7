"""Finds what a command reads: a running server, a server's state folder, or the folder of a run.

Use `async with open_source("show", options) as source`. gRPC is imported only for a running server, because a command
that reads a folder does not need it.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.protocol.types import RolloutFilter
from osmosis_grpc.records.reading.source_port import Events, Source, SourceError, stopped_text
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.option import PREFIX, host_port
from osmosis_grpc.settings.server_options import ServerOptions

if TYPE_CHECKING:
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.records.reading.server_source import ChosenServer

__all__ = [
    "Events",
    "Source",
    "chosen_server",
    "open_source",
    "read_source",
    "run_folder",
    "run_reading",
    "sets_options",
    "state_folder",
    "stopped_text",
    "usual_folder",
]

MEMORY = ":memory:"
"""The name of a journal in memory."""
CREDENTIALS = ("token", "token_file", "tls", "ca", "cert", "key")
"""The options of SourceOptions for the connection to a server, which are also settings of a client."""
SERVER = "127.0.0.1:50051"
"""The server that commands ask if no option names another one."""
NAMES = {"view": ("--follow", "--server-token")}
"""The commands with other names for --server and --token."""
RUNS = Path(".osmosis/runs")
"""Where test and eval keep their runs."""


def sets_options() -> bool:
    """Return whether a variable or the file .env possibly sets an option. If not, all options have their defaults."""
    # If they are imported, a second import takes no time, and configure() was perhaps called.
    known = "osmosis_grpc.settings.settings" in sys.modules
    return known or Path(".env").exists() or any(name.upper().startswith(PREFIX) for name in os.environ)


def state_folder(command: str, state_dir: str | None) -> Path:
    """Return the folder that the option names, or else the folder of the settings.

    If the folder cannot be used, the command ends with exit code 2.
    """
    folder = usual_folder(command) if state_dir is None else None if state_dir == MEMORY else Path(state_dir)
    if folder is None:
        usage_error(command, "a journal in memory is gone with its server; --state-dir DIR names one on disk")
    return folder


def run_folder(command: str, run: str) -> Path:
    """Return the folder of a run of test or eval. `last` is the newest run.

    If there is no such run, the command ends with exit code 2.
    """
    from osmosis_grpc.protocol.types.outcome import printable
    from osmosis_grpc.records.evaluate.errors import RunError
    from osmosis_grpc.records.evaluate.run_folder import RunFolder

    try:
        return RunFolder.open(run).path
    except RunError as error:
        usage_error(command, printable(f"{error}; --run names the folder of a run of test or eval, or last"))


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


def chosen_server(command: str, options: SourceOptions, why: str = "") -> "ChosenServer":
    """Return the server of the options. A wrong option ends the command with exit code 2."""
    from osmosis_grpc.records.reading.server_source import ChosenServer

    try:
        target = host_port(options.server or SERVER)
        credentials = _credentials(options)
    except OptionError as error:
        usage_error(command, error.named({f"client_{name}": f"--{name.replace('_', '-')}" for name in CREDENTIALS}))
    except ValueError as error:
        usage_error(command, str(error))
    try:
        credentials.check_target(target)
    except ValueError:
        usage_error(
            command,
            f"{target} is not loopback, and the token would travel there in plain text: speak TLS with it, "
            "or pass --insecure",
        )
    return ChosenServer(target, credentials, why, NAMES.get(command, ("--server", "--token")))


def _credentials(options: SourceOptions) -> "Credentials":
    """Return the credentials of the options, or else of the variables OSMOSIS_ROLLOUT_CLIENT_*. Raises ValueError."""
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.serve.options import credentials_to_show

    given = {name: value for name in CREDENTIALS if (value := getattr(options, name))}
    if not given and not sets_options():
        return Credentials(insecure=options.insecure)
    from pydantic import ValidationError

    from osmosis_grpc.settings.settings import RolloutClientSettings, problems

    try:
        known = RolloutClientSettings(**given)
    except ValidationError as error:
        raise ValueError(problems(error)) from None
    return credentials_to_show(
        known.secret("token"),
        known.ca,
        known.cert,
        known.key,
        tls=known.tls,
        insecure=options.insecure,
        names=("--token", "--ca", "--cert", "--key"),
    )


def open_source(command: str, options: SourceOptions) -> Source:
    """Return the source that the options name. A wrong option ends the command with exit code 2.

    Without --server, --state-dir and --run, the source is the state folder of the settings if it has a journal, else
    the server at 127.0.0.1:50051.
    """
    named = {"--server": options.server, "--state-dir": options.state_dir, "--run": options.run}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        usage_error(command, f"{' and '.join(given)} exclude each other; name one of them")
    folder, why = None, ""
    if options.state_dir is not None:
        folder = state_folder(command, options.state_dir)
    elif options.run is not None:
        folder = run_folder(command, options.run)
    elif options.server is None:
        usual = usual_folder(command)
        if usual is not None and (usual / "journal.db").exists():
            folder = usual
        elif usual is not None:
            other = f" (--run last reads the newest run in {RUNS})" if any(RUNS.glob("*/journal.db")) else ""
            why = f"there is no journal in {usual}{other}, and "
    if folder is not None:
        from osmosis_grpc.records.reading.folder_source import FolderSource

        return FolderSource(folder)
    from osmosis_grpc.records.reading.server_source import ServerSource

    server = chosen_server(command, options, why)
    if given:
        return ServerSource(server)
    return ServerSource(server, lambda: say_error(f"{command}: {why}the command reads {server}"))


def nothing_in(place: str, where: RolloutFilter) -> str:
    """Return the text about a source without rollouts that a filter selects."""
    return f"{'no rollout matches' if where != RolloutFilter() else 'there are no rollouts yet'} in {place}"


def read_source(
    command: str, options: SourceOptions, read: Callable[[Source, Records], Awaitable[int]], *, json: bool
) -> int:
    """Run a command that reads a source, and return its exit code. See run_reading().

    Args:
        command: The name of the command, for its errors.
        options: Which source it reads.
        read: Prints what the command prints. The source is open.
        json: Whether stdout has only records.
    """

    async def run(out: Records) -> int:
        async with open_source(command, options) as source:
            return await read(source, out)

    return run_reading(command, run, json=json)


def run_reading(command: str, work: Callable[[Records], Coroutine[Any, Any, int]], *, json: bool) -> int:
    """Run the work of a command, and return its exit code. An error of a source ends it with exit code 2."""
    with records(json) as out:
        try:
            return asyncio.run(work(out))
        except SourceError as error:
            usage_error(command, str(error))
        except KeyboardInterrupt:
            return 130
