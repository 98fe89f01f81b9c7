"""The validate command: prints the problems of agent loops, with code, place and hint.

The checks themselves are in osmosis_grpc.agent.validator, those of --run in osmosis_grpc.cli.trial.
"""

import contextlib
import dataclasses
import re
import sys
import traceback
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_grpc.cli.trial import AGENT_TIMEOUT

LONGEST = 86_400.0
"""The greatest --timeout, in seconds."""

if TYPE_CHECKING:
    from osmosis_grpc.agent.loader import LoadError
    from osmosis_grpc.agent.validator import Finding, ValidationResult
    from osmosis_grpc.cli.trial import Trial
    from osmosis_grpc.serve.records import Records
    from osmosis_grpc.types import Completion


def validate(
    unnamed: Annotated[list[str] | None, typer.Argument(metavar="-m MODULE:ATTR", hidden=True)] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("-m", "--module", metavar="MODULE:ATTR", help="Agent loop to check; may be repeated.  [required]"),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also run a rollout of each, with a mock model that calls every tool.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long such a rollout may take.")
    ] = AGENT_TIMEOUT,
    json: Annotated[bool, typer.Option("--json", help="Only JSON records on stdout.")] = False,
) -> None:
    """Check agent loops. Exit codes: 0 without errors, 1 with errors, 2 when there is nothing to check."""
    from osmosis_grpc.serve.records import records

    if unnamed or not module:
        meant = " ".join(f"-m {spec}" for spec in unnamed or ["MODULE:ATTR"])
        typer.echo(_printable(f"validate: -m or --module names an agent loop: validate {meant}"), err=True)
        raise typer.Exit(2)
    if not 0 < timeout <= LONGEST:
        typer.echo(f"validate: --timeout {timeout:g}: is not between 0 and {LONGEST:g} seconds", err=True)
        raise typer.Exit(2)
    with records(json) as out:
        report = _Report(out, json)
        for spec in module:
            try:
                _check(spec, timeout if run else None, report)
            except _NotLoadedError as error:
                report.not_loaded += 1
                typer.echo(_printable(f"validate: {error}"), err=True)
        report.end()
    raise typer.Exit(2 if report.not_loaded else 1 if report.errors else 0)


class _NotLoadedError(Exception):
    """A specification names nothing that can be checked."""


class _Report:
    """Prints the findings of each agent, as records or as text."""

    def __init__(self, out: "Records", json: bool) -> None:
        self._out = out
        self._json = json
        self.names: set[str] = set()
        self.agents = self.errors = self.warnings = self.not_loaded = 0

    def add(self, spec: str, result: "ValidationResult", trial: "Trial | None" = None) -> None:
        """Print one agent, its findings and its trial."""
        name = None if result.agent_name is None else _printable(result.agent_name)
        errors, warnings = len(result.errors), len(result.warnings)
        self.agents, self.errors, self.warnings = self.agents + 1, self.errors + errors, self.warnings + warnings
        if trial is not None and trial.completion is not None:
            self._run(spec, name, trial.completion)
        for finding in result.findings:
            self._out.write("finding", module=spec, agent=name, **dataclasses.asdict(_readable(finding)))
        self._out.write("validated", module=spec, agent=name, valid=result.valid, errors=errors, warnings=warnings)
        if not self._json:
            typer.echo(f"{name or 'no name'} ({spec}): {'valid' if result.valid else 'not valid'}")
            for finding in map(_readable, result.findings):
                place = f"{finding.file}:{finding.line}" if finding.file else "no source"
                typer.echo(f"  {finding.severity} {finding.code} {place}")
                typer.echo(f"    {finding.message}\n    hint: {finding.hint}")
            if trial is not None and trial.completion is not None:
                from osmosis_grpc.cli.transcript import transcript

                for line in transcript(trial.completion, trial.runs, trial.chats):
                    typer.echo(f"  {line}")

    def _run(self, spec: str, name: str | None, completion: "Completion") -> None:
        metrics, samples = completion.metrics, completion.samples
        self._out.write(
            "run",
            module=spec,
            agent=name,
            status=str(completion.status),
            finish_reason=completion.finish_reason,
            reward=completion.reward,
            turns=metrics.num_llm_calls,
            tool_calls=metrics.num_tool_calls,
            seconds=metrics.total_latency_ms / 1000,
            messages=list(completion.messages),
            samples={key: list(sample.messages) for key, sample in samples.items()} if len(samples) > 1 else {},
        )

    def end(self) -> None:
        """Print the last line of the text."""
        if not self._json:
            counts = (self.agents, "agent"), (self.errors, "error"), (self.warnings, "warning")
            text = ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)
            typer.echo(text + (f", {self.not_loaded} not loaded" if self.not_loaded else ""))


def _check(spec: str, timeout: float | None, report: _Report) -> None:
    """Load what a specification names and report about each agent loop in it. Raises _NotLoadedError.

    With a `timeout` each valid one is run.
    """
    from osmosis_grpc.agent.loader import LoadError, load_object
    from osmosis_grpc.agent.validator import validate_agent_loop
    from osmosis_grpc.cli.trial import try_out
    from osmosis_grpc.cli.trial_findings import findings_of

    try:
        found = load_object(spec)
    except LoadError as error:
        result = _result_of(error.__cause__)
        if result is None:
            raise _NotLoadedError(_why(spec, error)) from error
        report.add(spec, result)
        return
    items = list(found) if isinstance(found, list | tuple) else [found]
    if not items:
        raise _NotLoadedError(f"{spec} is empty")
    for item in items:
        result = validate_agent_loop(item)
        findings = [*_refused(item, result.agent_name, report.names), *result.findings]
        trial = None
        if timeout is not None and result.valid:
            agent_loop = item() if isinstance(item, type) else item
            trial = try_out(agent_loop, timeout)
            findings += findings_of(trial, agent_loop)
        report.add(spec, dataclasses.replace(result, findings=tuple(findings)), trial)


def _refused(item: object, name: str | None, names: set[str]) -> "Iterator[Finding]":
    """Yield findings about agents that are valid alone but that a server would refuse."""
    from osmosis_grpc.agent.loop import RolloutAgentLoop
    from osmosis_grpc.agent.renamed import of_the_sdk
    from osmosis_grpc.agent.validator import make, place_of

    cls = item if isinstance(item, type) else type(item)
    if not issubclass(cls, RolloutAgentLoop):
        reason = of_the_sdk(cls)
        text = f"{cls.__name__} is not a RolloutAgentLoop" + (f": {reason}" if reason else "")
        yield make("NOT_AN_AGENT_LOOP", text, place_of(cls))
    if name is not None and name in names:
        yield make("DUPLICATE_NAME", f"another agent loop is named {name!r} too", place_of(cls))
    names |= {name} if name is not None else set()


def _why(spec: str, error: "LoadError") -> str:
    """Return why a specification cannot be loaded; of a class without a usable name, the class, its line and a hint."""
    import linecache

    from osmosis_grpc.agent.loop import AgentNameError
    from osmosis_grpc.agent.validator import HINTS, place_of_error, statement

    cause = error.__cause__
    if not isinstance(cause, AgentNameError):
        return str(error)
    file, line = place_of_error(cause)
    if file is not None and line is not None:
        line += statement(linecache.getlines(file)[line - 1 :])
    return f"{spec}: the module cannot be imported: {cause.code}: class {cause} at {file}:{line}; {HINTS[cause.code]}"


def _result_of(error: BaseException | None) -> "ValidationResult | None":
    """Return the findings about the agent class that made a user's module fail; None if no class did."""
    from osmosis_grpc.agent.loop import RolloutAgentLoop
    from osmosis_grpc.agent.validator import validate_agent_loop

    abstract = re.match(r"Can't instantiate abstract class (\w+)", str(error))
    if isinstance(error, TypeError) and abstract:
        for cls in _subclasses(RolloutAgentLoop):
            if cls.__name__ == abstract[1] and getattr(cls, "__abstractmethods__", None):
                with _importable(cls, error):
                    return validate_agent_loop(cls)
    return None


@contextlib.contextmanager
def _importable(cls: type, error: BaseException) -> Iterator[None]:
    """Put back the module of a class whose import failed, so that its source can be found."""
    names = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    left = next((found for found in names if found.get("__name__") == cls.__module__), None)
    if left is None or cls.__module__ in sys.modules:
        yield
        return
    module = sys.modules[cls.__module__] = types.ModuleType(cls.__module__)
    module.__dict__.update(left)
    try:
        yield
    finally:
        del sys.modules[cls.__module__]


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield the classes derived from a class, the newest first."""
    for derived in reversed(cls.__subclasses__()):
        yield derived
        yield from _subclasses(derived)


def _readable(finding: "Finding") -> "Finding":
    file = None if finding.file is None else _printable(finding.file)
    return dataclasses.replace(finding, message=_printable(finding.message), file=file)


def _printable(text: str) -> str:
    """Return a text on one line without control characters that can be written as UTF-8."""
    from osmosis_grpc.types.completion import printable

    return printable(" ".join(text.split()).encode("utf-8", "replace").decode())
