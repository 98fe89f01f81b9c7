"""Declares the options that say where rollouts are: a running server, a state folder or a run. Imports only typer."""

from dataclasses import dataclass
from typing import Annotated

import typer

from osmosis_grpc.cli.option_groups import with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where a command finds rollouts, and its credentials. Each field is an option of the command line."""

    server: Annotated[
        str | None, typer.Option("--server", metavar="HOST:PORT", help="Ask this running server.", show_default=False)
    ] = None
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Read this state folder; a server may be using it. "
            "Default: ./.osmosis/state if it has a journal, else the server 127.0.0.1:50051.",
        ),
    ] = None
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Read the folder of this run of test or eval, or last.")
    ] = None
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="SECRET", help="Token to show to the server. Prefer the file or the variable."),
    ] = None
    token_file: Annotated[str | None, typer.Option("--token-file", metavar="FILE", help="File that holds --token.")] = (
        None
    )
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS with the server.")] = False
    ca: Annotated[str | None, typer.Option("--ca", metavar="FILE", help="CA of the server; implies --tls.")] = None
    cert: Annotated[
        str | None, typer.Option("--cert", metavar="FILE", help="Certificate to show to the server; implies --tls.")
    ] = None
    key: Annotated[str | None, typer.Option("--key", metavar="FILE", help="The private key of --cert.")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Send the token to another machine without TLS.")] = False


with_source = with_options(SourceOptions, "source")
"""Gives a command the options of SourceOptions. The function gets them as its parameter `source`."""
with_journal = with_options(SourceOptions, "source", without=("run",))
"""Gives a command the same options without --run."""
with_server = with_options(SourceOptions, "source", without=("state_dir", "run"))
"""Gives a command the options that name a running server."""
with_view_server = with_options(SourceOptions, "source", without=("server", "state_dir", "run", "token", "token_file"))
"""Gives a command only the options for the connection to a server. Its other options have names of their own."""
