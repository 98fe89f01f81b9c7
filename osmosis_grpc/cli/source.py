"""Opens the source that a command's options name: a running server, a server's state folder, or a run.

A Source is used as `async with open_source("show", options) as source`. server_source.py and folder_source.py are
imported only when they are used, because a command that reads a folder needs no gRPC.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.cli.usual_folder import run_folder, state_folder, usual_folder
from osmosis_grpc.records.reading.source_port import Events, Source, SourceError, stopped_text
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.serve.startup import usage_error

__all__ = ["Events", "Source", "open_source", "read_source", "stopped_text"]

RUNS = Path(".osmosis/runs")
"""Where test and eval keep their runs."""


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
    from osmosis_grpc.cli.server_choice import chosen_server
    from osmosis_grpc.records.reading.server_source import ServerSource

    server = chosen_server(command, options, why)
    if given:
        return ServerSource(server)
    return ServerSource(server, lambda: say_error(f"{command}: {why}the command reads {server}"))


def read_source(
    command: str, options: SourceOptions, read: Callable[[Source, Records], Awaitable[int]], *, json: bool
) -> int:
    """Run a command that reads a source, and return its exit code. An error of the source ends it with exit code 2.

    Args:
        command: The name of the command, for its errors.
        options: Which source it reads.
        read: Prints what the command prints. The source is open.
        json: Whether stdout has only records.
    """

    async def run(out: Records) -> int:
        async with open_source(command, options) as source:
            return await read(source, out)

    with records(json) as out:
        try:
            return asyncio.run(run(out))
        except SourceError as error:
            usage_error(command, str(error))
        except KeyboardInterrupt:
            return 130
