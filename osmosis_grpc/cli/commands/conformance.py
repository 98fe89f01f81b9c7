"""The command that checks other implementations of the protocol."""

import typer

from osmosis_grpc.cli.conformance_options import ConformanceOptions, with_conformance
from osmosis_grpc.cli.options import Json, SourceOptions, with_server

commands = typer.Typer()


@commands.command(short_help="Check an agent server or a trainer of any language.")
@with_server
@with_conformance
def conformance(*, options: ConformanceOptions, json: Json = False, source: SourceOptions) -> None:
    """Check an agent server (--server) or a trainer (--trainer) of any language against the protocol.

    The suite plays the other side. A server must host the agent loop `conformance`, and a trainer must be a command
    with the options in docs/conformance.md. A failed case shows what was sent and received, and the sentences of the
    proto that require it.

    Exit codes: 0 all cases passed or were skipped, 1 a case failed, or a known failure passed, 2 a wrong option, or the
    side under test cannot be tested, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.conformance import run_conformance

    raise typer.Exit(run_conformance(options, source, json=json))
