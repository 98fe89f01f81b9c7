"""Opens the source that a command reads: a running server, a server's state folder, or the folder of a run.

Use `async with open_source("show", options) as source`. gRPC is imported only for a running server, because a command
that reads a folder does not need it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.place import SERVER, Place, place_of, sets_options
from osmosis_grpc.protocol.types import RolloutFilter
from osmosis_grpc.records.reading.source_port import Events, Source, SourceError, stopped_text
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.option import host_port

if TYPE_CHECKING:
    from osmosis_grpc.network.credentials import Credentials
    from osmosis_grpc.records.reading.server_source import ChosenServer

__all__ = ["Events", "Source", "chosen_server", "open_source", "read_source", "run_reading", "stopped_text"]

CREDENTIALS = ("token", "token_file", "tls", "ca", "cert", "key")
"""The fields of SourceOptions for the connection to a server. Client settings have the same names."""


def chosen_server(command: str, options: SourceOptions, place: Place | None = None) -> "ChosenServer":
    """Return the server that the options or `place` name. A wrong option ends the command with exit code 2."""
    from osmosis_grpc.records.reading.server_source import ChosenServer

    try:
        target = host_port(place.server if place else options.server or SERVER)
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
            f"{target} is not loopback, and the token would travel there in plain text: use TLS (--tls), "
            "or pass --insecure",
        )
    names = "--from" if place else "--server", "--server-token" if command == "view" else "--token"
    return ChosenServer(target, credentials, f"{place.why}, and " if place and place.why else "", names)


def _credentials(options: SourceOptions) -> "Credentials":
    """Return the credentials from the options, or else from OSMOSIS_ROLLOUT_CLIENT_* variables. Raises ValueError."""
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


def open_source(command: str, options: SourceOptions, place: Place | None = None) -> Source:
    """Return the source that the options or `place` name. A wrong option ends the command with exit code 2."""
    place = place or place_of(command, options.where)
    if place.folder is not None:
        from osmosis_grpc.records.reading.folder_source import FolderSource

        return FolderSource(place.folder)
    from osmosis_grpc.records.reading.server_source import ServerSource

    server = chosen_server(command, options, place)
    if options.where is not None:
        return ServerSource(server)
    return ServerSource(server, lambda: say_error(f"{command}: {server.why}the command reads {server}"))


def nothing_in(place: str, where: RolloutFilter) -> str:
    """Return the message for a source in which a filter selects no rollouts."""
    return f"{'no rollout matches' if where != RolloutFilter() else 'there are no rollouts yet'} in {place}"


def read_source(
    command: str, options: SourceOptions, read: Callable[[Source, Records], Awaitable[int]], *, json: bool
) -> int:
    """Run a command that reads a source, and return its exit code. See run_reading().

    Args:
        command: The name of the command, for its errors.
        options: The source to read.
        read: Takes the open source, prints, and returns the exit code.
        json: Whether stdout has only records.
    """

    async def run(out: Records) -> int:
        async with open_source(command, options) as source:
            return await read(source, out)

    return run_reading(command, run, json=json)


def run_reading(command: str, work: Callable[[Records], Coroutine[Any, Any, int]], *, json: bool) -> int:
    """Run the work of a command, and return its exit code. A SourceError ends the command with exit code 2."""
    with records(json) as out:
        try:
            return asyncio.run(work(out))
        except SourceError as error:
            usage_error(command, str(error))
        except KeyboardInterrupt:
            return 130
