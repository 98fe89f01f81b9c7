"""The validate command: prints the problems of agent loops, each with a code, a place and a hint.

The checks are in osmosis_grpc.agent.validator. The checks of --run are in osmosis_grpc.cli.trial_findings.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from osmosis_grpc.agent.config_sources import ConfigSources
from osmosis_grpc.agent.import_hints import of_the_sdk
from osmosis_grpc.agent.loader import LoadError, configure, is_runnable, load_items
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.validator import Finding, ValidationResult, place_of
from osmosis_grpc.agent.workflow import AgentWorkflow
from osmosis_grpc.agent.workflow_files import FoundWorkflow
from osmosis_grpc.agent.workflow_validator import validate_agent
from osmosis_grpc.cli.options import AgentSources
from osmosis_grpc.cli.screen import say_wrapped
from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.environments.spec import PREFIX
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error

if TYPE_CHECKING:
    from osmosis_grpc.cli.trial import Trial

LONGEST = 86_400.0
"""The greatest --timeout, in seconds."""


def validate_all(
    unnamed: list[str], specs: list[str], given: AgentSources, *, run: bool, timeout: float, json: bool
) -> int:
    """Check the agent loops that `specs` name, print the findings, and return the exit code."""
    if unnamed or not specs:
        meant = " ".join(f"-m {spec}" for spec in unnamed or ["MODULE:ATTR"])
        usage_error("validate", _printable(f"-m or --module names an agent loop: validate {meant}"))
    environments = [spec.removeprefix(PREFIX) for spec in specs if spec.startswith(PREFIX)]
    if environments:
        usage_error("validate", _printable(f"an environment is tried by its tasks: test --env {environments[0]}"))
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
            except LoadError as error:
                report.not_loaded += 1
                say_error(_printable(f"validate: {error}"))
        report.end()
    return 2 if report.not_loaded else 1 if report.errors else 0


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
        outcome = None if trial is None else trial.outcome
        if outcome is not None:
            metrics, samples = outcome.metrics, outcome.samples
            self._out.write(
                "run",
                module=spec,
                agent=name,
                status=str(outcome.status),
                finish_reason=outcome.finish_reason,
                reward=outcome.mean_reward,
                turns=metrics.num_llm_calls,
                tool_calls=metrics.num_tool_calls,
                seconds=metrics.total_latency_ms / 1000,
                messages=list(outcome.messages),
                samples={key: list(sample.messages) for key, sample in samples.items()} if len(samples) > 1 else {},
            )
        say_wrapped(self._out, f"{name or 'no name'} ({spec}): {'valid' if result.valid else 'not valid'}")
        for finding in result.findings:
            file = None if finding.file is None else _printable(finding.file)
            readable = dataclasses.replace(finding, message=_printable(finding.message), file=file)
            self._out.write("finding", module=spec, agent=name, **dataclasses.asdict(readable))
            place = f"{file}:{finding.line}" if file else "no source"
            say_wrapped(self._out, f"  {finding.severity} {finding.code} {place}")
            say_wrapped(self._out, f"    {readable.message}\n    hint: {finding.hint}")
        self._out.write("validated", module=spec, agent=name, valid=result.valid, errors=errors, warnings=warnings)
        if trial is not None and outcome is not None:
            for line in transcript(outcome, trial.runs, trial.chats):
                say_wrapped(self._out, f"  {line}")

    def end(self) -> None:
        """Print the last line of the text."""
        counts = (self.agents, "agent"), (self.errors, "error"), (self.warnings, "warning")
        rows = [counted(number, noun) for number, noun in counts] if self.agents or not self.not_loaded else []
        rows += [f"{counted(self.not_loaded, 'agent')} not loaded"] if self.not_loaded else []
        self._out.say(", ".join(rows))


def _check(spec: str, sources: ConfigSources, timeout: float | None, report: _Report) -> None:
    """Load the agent loops that MODULE:ATTR names, check them, and report the findings. Raises LoadError.

    With a `timeout`, also run each valid agent loop.
    """
    items = configure(load_items(spec), sources)
    if not items:
        raise LoadError(f"{spec} is empty")
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
    """Yield further findings, which the validator does not make, for agents that a server would refuse."""
    cls = item.workflow if isinstance(item, FoundWorkflow) else item if isinstance(item, type) else type(item)
    if not issubclass(cls, RolloutAgentLoop | AgentWorkflow) and not is_runnable(item):
        reason = of_the_sdk(cls)
        text = f"{cls.__name__} is not a RolloutAgentLoop or an AgentWorkflow" + (f": {reason}" if reason else "")
        hint = "derive it from RolloutAgentLoop or AgentWorkflow; serve a BaseAgent as agent_runnable(...)"
        yield Finding("NOT_AN_AGENT_LOOP", text, hint, *place_of(cls))
    if name in names:
        hint = "give each agent loop a name of its own; trainers choose by it"
        yield Finding("INVALID_AGENT_NAME", f"another agent loop is named {name!r} too", hint, *place_of(cls))
    names |= {name} if name is not None else set()


def _printable(text: str) -> str:
    """Return a text on one line, without control characters and without what UTF-8 cannot encode."""
    return printable(" ".join(text.split()).encode("utf-8", "replace").decode())
