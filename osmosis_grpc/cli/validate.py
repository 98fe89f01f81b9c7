"""The validate command: prints the problems of agent loops, with code, place and hint.

The checks are in osmosis_grpc.agent.validator. The checks of --run are in osmosis_grpc.cli.trial_findings.
"""

import contextlib
import dataclasses
import linecache
import re
import sys
import traceback
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from osmosis_grpc.agent.discovery import FoundWorkflow
from osmosis_grpc.agent.import_hints import of_the_sdk
from osmosis_grpc.agent.loader import LoadError, configure, is_runnable, load_items
from osmosis_grpc.agent.loop import AgentNameError, RolloutAgentLoop
from osmosis_grpc.agent.validator import (
    HINTS,
    Finding,
    ValidationResult,
    make,
    place_of,
    place_of_error,
    statement,
    validate_agent_loop,
)
from osmosis_grpc.agent.workflow import AgentWorkflow
from osmosis_grpc.agent.workflow_sources import ConfigSources
from osmosis_grpc.agent.workflow_validator import validate_agent
from osmosis_grpc.cli.agent_sources import SourceOptions
from osmosis_grpc.cli.screen import say_wrapped
from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.serve.startup import usage_error

if TYPE_CHECKING:
    from osmosis_grpc.cli.trial import Trial

LONGEST = 86_400.0
"""The greatest --timeout, in seconds."""


def validate_all(
    unnamed: list[str], specs: list[str], given: SourceOptions, *, run: bool, timeout: float, json: bool
) -> int:
    """Check the agent loops that `specs` name, print the findings, and return the exit code."""
    if unnamed or not specs:
        meant = " ".join(f"-m {spec}" for spec in unnamed or ["MODULE:ATTR"])
        usage_error("validate", _printable(f"-m or --module names an agent loop: validate {meant}"))
    if not 0 < timeout <= LONGEST:
        usage_error("validate", f"--timeout {timeout:g}: is not between 0 and {LONGEST:g} seconds")
    try:
        sources = given.sources()
    except LoadError as error:
        usage_error("validate", _printable(str(error)))
    with records(json) as out:
        report = _Report(out)
        for spec in specs:
            try:
                _check(spec, sources, timeout if run else None, report)
            except _NotLoadedError as error:
                report.not_loaded += 1
                say_error(_printable(f"validate: {error}"))
        report.end()
    return 2 if report.not_loaded else 1 if report.errors else 0


class _NotLoadedError(Exception):
    """A specification leads to no agent loop that can be checked."""


class _Report:
    """Prints the findings of each agent, as records or as text."""

    def __init__(self, out: Records) -> None:
        self._out = out
        self.names: set[str] = set()
        self.agents = self.errors = self.warnings = self.not_loaded = 0

    def add(self, spec: str, result: ValidationResult, trial: "Trial | None" = None) -> None:
        """Print one agent, its findings and its trial."""
        name = None if result.agent_name is None else _printable(result.agent_name)
        errors, warnings = len(result.errors), len(result.warnings)
        self.agents, self.errors, self.warnings = self.agents + 1, self.errors + errors, self.warnings + warnings
        if trial is not None and trial.outcome is not None:
            metrics, samples = trial.outcome.metrics, trial.outcome.samples
            self._out.write(
                "run",
                module=spec,
                agent=name,
                status=str(trial.outcome.status),
                finish_reason=trial.outcome.finish_reason,
                reward=trial.outcome.mean_reward,
                turns=metrics.num_llm_calls,
                tool_calls=metrics.num_tool_calls,
                seconds=metrics.total_latency_ms / 1000,
                messages=list(trial.outcome.messages),
                samples={key: list(sample.messages) for key, sample in samples.items()} if len(samples) > 1 else {},
            )
        for finding in result.findings:
            self._out.write("finding", module=spec, agent=name, **dataclasses.asdict(_readable(finding)))
        self._out.write("validated", module=spec, agent=name, valid=result.valid, errors=errors, warnings=warnings)
        say_wrapped(self._out, f"{name or 'no name'} ({spec}): {'valid' if result.valid else 'not valid'}")
        for finding in map(_readable, result.findings):
            place = f"{finding.file}:{finding.line}" if finding.file else "no source"
            say_wrapped(self._out, f"  {finding.severity} {finding.code} {place}")
            say_wrapped(self._out, f"    {finding.message}\n    hint: {finding.hint}")
        if trial is not None and trial.outcome is not None:
            for line in transcript(trial.outcome, trial.runs, trial.chats):
                say_wrapped(self._out, f"  {line}")

    def end(self) -> None:
        """Print the last line of the text."""
        counts = (self.agents, "agent"), (self.errors, "error"), (self.warnings, "warning")
        rows = [counted(number, noun) for number, noun in counts] if self.agents or not self.not_loaded else []
        rows += [f"{counted(self.not_loaded, 'agent')} not loaded"] if self.not_loaded else []
        self._out.say(", ".join(rows))


def _check(spec: str, sources: ConfigSources, timeout: float | None, report: _Report) -> None:
    """Load the agent loops of a specification, check them, and report the findings. Raises _NotLoadedError.

    With a `timeout`, also run each valid agent loop.
    """
    try:
        items = configure(load_items(spec), sources)
    except LoadError as error:
        result = _result_of(error.__cause__)
        if result is None:
            raise _NotLoadedError(_why(spec, error)) from error
        report.add(spec, result)
        return
    if not items:
        raise _NotLoadedError(f"{spec} is empty")
    for item in items:
        result = validate_agent(item)
        findings = [*_refused(item, result.agent_name, report.names), *result.findings]
        trial = None
        if timeout is not None and result.valid:
            from osmosis_grpc.cli.trial import try_out  # imports the engine
            from osmosis_grpc.cli.trial_findings import findings_of

            agent_loop = item.runnable() if isinstance(item, FoundWorkflow) else item
            agent_loop = agent_loop() if isinstance(agent_loop, type) else agent_loop
            trial = try_out(agent_loop, timeout)
            findings += findings_of(trial, agent_loop)
        report.add(spec, dataclasses.replace(result, findings=tuple(findings)), trial)


def _refused(item: object, name: str | None, names: set[str]) -> Iterator[Finding]:
    """Yield the findings that the validator cannot make, for agents that a server would refuse."""
    cls = item.workflow if isinstance(item, FoundWorkflow) else item if isinstance(item, type) else type(item)
    if not issubclass(cls, RolloutAgentLoop | AgentWorkflow) and not is_runnable(item):
        reason = of_the_sdk(cls)
        text = f"{cls.__name__} is not a RolloutAgentLoop or an AgentWorkflow" + (f": {reason}" if reason else "")
        yield make("NOT_AN_AGENT_LOOP", text, place_of(cls))
    if name is not None and name in names:
        yield make("DUPLICATE_NAME", f"another agent loop is named {name!r} too", place_of(cls))
    names |= {name} if name is not None else set()


def _why(spec: str, error: LoadError) -> str:
    """Return the reason why a specification cannot be loaded.

    For a class without a usable name, the text has the class, its line and a hint.
    """
    cause = error.__cause__
    if not isinstance(cause, AgentNameError):
        return str(error)
    file, line = place_of_error(cause)
    if file is not None and line is not None:
        line += statement(linecache.getlines(file)[line - 1 :])
    return f"{spec}: the module cannot be imported: {cause.code}: class {cause} at {file}:{line}; {HINTS[cause.code]}"


def _result_of(error: BaseException | None) -> ValidationResult | None:
    """Return the findings about an abstract agent class that the user's module tried to instantiate.

    Return None if the module failed for another reason.
    """
    abstract = re.match(r"Can't instantiate abstract class (\w+)", str(error))
    if isinstance(error, TypeError) and abstract:
        for cls in _subclasses(RolloutAgentLoop):
            if cls.__name__ == abstract[1] and getattr(cls, "__abstractmethods__", None):
                with _importable(cls, error):
                    return validate_agent_loop(cls)
    return None


@contextlib.contextmanager
def _importable(cls: type, error: BaseException) -> Iterator[None]:
    """Put the module of a class into sys.modules, so that the source of the class can be found.

    The module is missing there if its import failed. At the end it is removed again.
    """
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


def _readable(finding: Finding) -> Finding:
    file = None if finding.file is None else _printable(finding.file)
    return dataclasses.replace(finding, message=_printable(finding.message), file=file)


def _printable(text: str) -> str:
    """Return a text on one line, without control characters. The result can always be encoded as UTF-8."""
    return printable(" ".join(text.split()).encode("utf-8", "replace").decode())
