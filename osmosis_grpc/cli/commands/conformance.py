"""The command that checks other implementations."""

import typer

from osmosis_grpc.cli.commands.shared import Json
from osmosis_grpc.cli.option_groups import option
from osmosis_grpc.cli.source_options import SourceOptions, with_server

commands = typer.Typer()


@commands.command(short_help="Check an agent server or a trainer of any language.")
@with_server
def conformance(
    trainer: str | None = option("--trainer COMMAND", "Test this trainer: a command that the suite starts."),
    case: list[str] | None = option("--case NAME", "Only this case, or CASE@MODE; repeatable."),
    list_: bool = option("--list", "List the cases for --server, or for --trainer, and end.", False),
    over: list[str] | None = option("--over MODE", "Only over callback, attach or accept; repeatable."),
    accept: str | None = option("--accept HOST:PORT", "Wait here for a server under test that dials out."),
    host: str = option("--host ADDRESS", "Where the server reaches the suite's callbacks.", "127.0.0.1"),
    second_token_file: str | None = option("--second-token-file FILE", "File with a token of another owner."),
    admin_token_file: str | None = option("--admin-token-file FILE", "File with a token of an administrator."),
    known_failures: str | None = option(
        "--known-failures FILE", "Cases that may fail: CASE or CASE@MODE # REASON, one a line."
    ),
    cases: str | None = option("--cases DIR", "Take the cases from DIR/server and DIR/trainer."),
    jobs: int = option("--jobs N", "Cases at once.", 8, min=1, max=64),
    report: str | None = option("--report FILE", "Write the report as JSON."),
    junit: str | None = option("--junit FILE", "Write the report as JUnit XML."),
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
