"""Declares the options of the conformance command. Imports only typer."""

from dataclasses import dataclass

from osmosis_grpc.cli.options import choice, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceOptions:
    """The options of the command, except those that name the server."""

    trainer: str | None = choice("--trainer COMMAND", "Test this trainer: a command that the suite starts.")
    case: tuple[str, ...] = choice("--case NAME", "Only this case, or CASE@MODE; repeatable.", ())
    list_: bool = choice("--list", "List the cases for a server, or with --trainer for a trainer, and exit.", False)
    over: tuple[str, ...] = choice("--over MODE", "Only over callback, attach or accept; repeatable.", ())
    accept: str | None = choice("--accept HOST:PORT", "Wait here for a server under test that dials out.")
    host: str = choice("--host ADDRESS", "The address at which the server can call this suite.", "127.0.0.1")
    second_token_file: str | None = choice("--second-token-file FILE", "File with a token of another owner.")
    admin_token_file: str | None = choice("--admin-token-file FILE", "File with a token of an administrator.")
    known_failures: str | None = choice(
        "--known-failures FILE", "Cases that may fail: CASE or CASE@MODE # REASON, one a line."
    )
    cases: str | None = choice("--cases DIR", "Read the cases from DIR/server and DIR/trainer.")
    jobs: int = choice("--jobs N", "Run so many cases at once.", 8, min=1, max=64)
    report: str | None = choice("--report FILE", "Write the report as JSON.")
    junit: str | None = choice("--junit FILE", "Write the report as JUnit XML.")


with_conformance = with_options(ConformanceOptions, "options")
"""Adds the options of ConformanceOptions to a command. The function gets them as its parameter `options`."""
