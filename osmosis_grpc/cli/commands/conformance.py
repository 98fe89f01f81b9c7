"""The command that checks other implementations."""

from typing import Annotated

import typer

from osmosis_grpc.cli.commands.shared import Json
from osmosis_grpc.cli.source_options import SourceOptions, with_server

commands = typer.Typer()


@commands.command(short_help="Check an agent server or a trainer of any language.")
@with_server
def conformance(
    trainer: Annotated[
        str | None,
        typer.Option("--trainer", metavar="COMMAND", help="Test this trainer: a command that the suite starts."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Only this case, or CASE@MODE; repeatable.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the cases for --server, or for --trainer, and end.")
    ] = False,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="MODE", help="Only over callback, attach or accept; repeatable."),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option("--accept", metavar="HOST:PORT", help="Wait here for a server under test that dials out."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where the server reaches the suite's callbacks.")
    ] = "127.0.0.1",
    second_token_file: Annotated[
        str | None, typer.Option("--second-token-file", metavar="FILE", help="File with a token of another owner.")
    ] = None,
    admin_token_file: Annotated[
        str | None, typer.Option("--admin-token-file", metavar="FILE", help="File with a token of an administrator.")
    ] = None,
    known_failures: Annotated[
        str | None,
        typer.Option(
            "--known-failures", metavar="FILE", help="Cases that may fail: CASE or CASE@MODE # REASON, one a line."
        ),
    ] = None,
    cases: Annotated[
        str | None, typer.Option("--cases", metavar="DIR", help="Take the cases from DIR/server and DIR/trainer.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, max=64, help="Cases at once.")] = 8,
    report: Annotated[str | None, typer.Option("--report", metavar="FILE", help="Write the report as JSON.")] = None,
    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML.")] = None,
    json: Json = False,
    *,
    source: SourceOptions,
) -> None:
    """Check an agent server (--server) or a trainer (--trainer) of any language against the protocol.

    The suite plays the other side. The server hosts the agent loop `conformance`, and the trainer is a command with the
    options that docs/conformance.md describes. Each failed case shows what was sent and received, and the sentences of
    the proto that it rests on.

    Exit codes: 0 all cases passed or were skipped, 1 a case failed, or a known failure passed, 2 a wrong option, or the
    side under test cannot be tested, 130 Ctrl-C.
    """
    from osmosis_grpc.cli.conformance import ConformanceOptions, run_conformance

    options = ConformanceOptions(
        trainer=trainer,
        case=case or (),
        list_=list_,
        over=over or (),
        known_failures=known_failures,
        accept=accept,
        host=host,
        second_token_file=second_token_file,
        admin_token_file=admin_token_file,
        jobs=jobs,
        report=report,
        junit=junit,
        cases=cases,
    )
    raise typer.Exit(run_conformance(options, source, json=json))
