"""The validate command: tells what is wrong with agent loops, with code, place and hint.

--run also runs one rollout of each, in this process: the real engine, the mock for a model.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:

    from osmosis_grpc.agent.validator import Finding
    from osmosis_grpc.serve.records import Records

QUESTION = "What is (2 + 3) * 4?"
"""What --run asks."""

AGENT_TIMEOUT = 30.0
"""Seconds that --run gives a rollout."""

BLOCKED = 0.2
"""Seconds that the event loop may be blocked."""

PULSE = 0.02
"""Seconds between two looks at the event loop."""

HINTS = {
    "BLOCKING_CALL": "await asyncio.to_thread(...) for code that blocks, or use a library that is async",
    "RESULT_NOT_RETURNED": "end run with return ctx.complete(messages), or return ctx.error(text)",
    "NON_FINITE_REWARD": "return a finite number, or None to leave the reward to a grader",
    "TOOL_CALL_UNANSWERED": 'append {"role": "tool", "tool_call_id": ..., "content": ...} for every call of a reply',
    "RUN_FAILED": "let run survive it; tell the model with create_tool_error_result, or give up with ctx.error(text)",
}
"""What to do about the codes of --run. The others are in osmosis_grpc.agent.validator."""


def validate(
    module: Annotated[
        list[str], typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Agent loop to check; may be repeated.")
    ],
    run: Annotated[bool, typer.Option("--run", help="Also run one rollout of each, with a mock for a model.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Only JSON records on stdout: findings, and a verdict.")] = False,
) -> None:
    """Check agent loops without serving them. Exit codes: 0 no errors, 1 errors, 2 it could not be loaded."""
    from osmosis_grpc.serve.records import records

    with records(json) as out:
        report = _Report(None if not json else out)
        for spec in module:
            try:
                _check(spec, run, report)
            except _NotLoaded as error:
                report.broken += 1
                typer.echo(f"validate: {error}", err=True)
        report.summary()
    raise typer.Exit(2 if report.broken else int(report.errors > 0))


class _NotLoaded(Exception):
    """A specification leads to nothing that could be looked at."""


class _Report:
    """Tells findings as they come, as records or as text."""

    def __init__(self, out: "Records | None") -> None:
        self._out = out
        self._names: set[str] = set()
        self.agents = self.errors = self.warnings = self.broken = 0

    def taken(self, name: str | None) -> bool:
        """Whether an agent of that name came before."""
        before = name in self._names
        self._names |= {name} if name else set()
        return before

    def add(self, spec: str, name: str | None, findings: "Sequence[Finding]") -> None:
        """One agent, and what was found about it."""
        errors = sum(finding.severity == "error" for finding in findings)
        warnings = len(findings) - errors
        self.agents, self.errors, self.warnings = self.agents + 1, self.errors + errors, self.warnings + warnings
        if self._out is not None:
            for finding in findings:
                self._out.write("finding", module=spec, agent=name, **_printable(dataclasses.asdict(finding)))
            self._out.write(
                "validated", module=spec, agent=_text(name) if name else None, valid=not errors, errors=errors,
                warnings=warnings,
            )  # fmt: skip
            return
        typer.echo(f"{_text(name) if name else '(no name)'}  {spec}")
        for finding in findings:
            place = f"{finding.file}:{finding.line}" if finding.file else spec
            typer.echo(_text(f"  {finding.severity} {finding.code} {place}"))
            typer.echo(_text(f"    {finding.message}"))
            typer.echo(_text(f"    hint: {finding.hint}"))

    def summary(self) -> None:
        """The last line of the text."""
        if self._out is None:
            counts = (self.agents, "agent"), (self.errors, "error"), (self.warnings, "warning")
            words = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
            typer.echo(f"validated {words}" + (f", {self.broken} not loaded" if self.broken else ""))
