"""Checks a workflow and its grader before they run, and reports all problems at once.

The codes are those of the Osmosis SDK, and MISSPELT_CONFIG_KEY.
"""

import copy
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from osmosis_grpc.agent.config_values import misspelt
from osmosis_grpc.agent.discovery import FoundWorkflow
from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.import_hints import import_hint
from osmosis_grpc.agent.loop import name_problem
from osmosis_grpc.agent.validator import Finding, Severity, ValidationResult, one_line, place_of, validate_agent_loop
from osmosis_grpc.agent.workflow import AgentWorkflow
from osmosis_grpc.agent.workflow_config import BaseConfig
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable

HINTS = {
    "INVALID_WORKFLOW_CLASS": "derive the class from osmosis_grpc.rollout.AgentWorkflow; add async def run(self, ctx)",
    "WORKFLOW_RUN_NOT_ASYNC": "write async def run(self, ctx) without yield",
    "WORKFLOW_INIT_FAILED": "make __init__ accept the configuration, or None, and leave work that can fail to run",
    "INVALID_AGENT_NAME": "give the configuration a name of 1 to 256 characters; without one, the class's name counts",
    "MISSING_GRADER": "add a subclass of osmosis_grpc.rollout.Grader, unless the trainer computes the rewards",
    "INVALID_GRADER_CLASS": "derive the class from osmosis_grpc.rollout.Grader, and add async def grade(self, ctx)",
    "GRADER_GRADE_NOT_ASYNC": "write async def grade(self, ctx) without yield, and likewise grade_group",
    "MISSPELT_CONFIG_KEY": "correct the name where the configuration is made, or declare a field of this name",
    "GRADER_INIT_FAILED": "make __init__ accept the grader's configuration, or None",
}
"""Code to a hint what to do about a finding with this code."""

WARNINGS = frozenset({"MISSING_GRADER", "MISSPELT_CONFIG_KEY"})


def validate_agent(agent: object) -> ValidationResult:
    """Return all problems of an agent loop or of a workflow. Raises nothing."""
    if isinstance(agent, FoundWorkflow | WorkflowRunnable):
        return validate_workflow(agent.workflow, agent.config, agent.grader, agent.grader_config)
    return validate_agent_loop(agent)


def validate_workflow(
    workflow: object, config: Any = None, grader: object = None, grader_config: Any = None
) -> ValidationResult:
    """Return all problems of a workflow, its configuration and its grader. Both classes are called, and not run.

    Raises nothing.
    """
    name = config.name if config is not None else getattr(workflow, "__name__", None)
    problem = name_problem(name)
    findings = [_make("INVALID_AGENT_NAME", f"{name!r:.80}: {problem[1]}", workflow)] if problem else []
    findings += _misspelt(config) + _misspelt(grader_config)
    wrong = list(_class(workflow, AgentWorkflow, "run", ("INVALID_WORKFLOW_CLASS", "WORKFLOW_RUN_NOT_ASYNC")))
    findings += wrong or _instance(workflow, config, "WORKFLOW_INIT_FAILED", copied=True)
    if grader is None:
        findings.append(
            _make("MISSING_GRADER", f"there is no grader for {name}, so its samples get no reward", workflow)
        )
    else:
        findings += validate_grader(grader, grader_config)
    return ValidationResult(None if problem else str(name), tuple(findings))


def validate_grader(grader: object, config: Any = None) -> list[Finding]:
    """Return all problems of a grader and its configuration. The class is called, and not run. Raises nothing."""
    wrong = list(_class(grader, Grader, "grade", ("INVALID_GRADER_CLASS", "GRADER_GRADE_NOT_ASYNC")))
    return wrong or _instance(grader, config, "GRADER_INIT_FAILED", copied=False)


def _misspelt(config: Any) -> list[Finding]:
    """Return a warning for each value that the code gives under a name that looks like the name of a field."""
    extra = (isinstance(config, BaseConfig) and config.model_extra) or {}
    problems = misspelt(type(config), extra, type(config).model_fields) if extra else {}
    return [_make("MISSPELT_CONFIG_KEY", f"{name}: {text}", type(config)) for name, text in problems.items()]


def _class(cls: Any, base: type, method: str, codes: tuple[str, str]) -> Iterator[Finding]:
    """Yield the findings about a class and its method."""
    if not isinstance(cls, type) or not issubclass(cls, base) or cls is base:
        named = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        yield _make(codes[0], f"{named} is not a subclass of {base.__name__}", cls)
        return
    for name in (method, "grade_group") if base is Grader else (method,):
        found = getattr(cls, name, None)
        if getattr(found, "__isabstractmethod__", False) or not callable(found):
            yield _make(codes[0], f"{cls.__name__} has no method {name}", cls)
        elif not inspect.iscoroutinefunction(inspect.unwrap(found)):
            yield _make(codes[1], f"{name} of {cls.__name__} is not async", found, cls)


def _instance(cls: Any, config: Any, code: str, *, copied: bool) -> list[Finding]:
    """Return the finding about a class that cannot be called with its configuration."""
    try:
        cls(copy.deepcopy(config) if copied else config)
    except (Exception, SystemExit) as error:
        made = _make(code, f"{cls.__name__}(config) raised {one_line(error)}", getattr(cls, "__init__"), cls)  # noqa: B009
        return [replace(made, hint=import_hint(error, made.hint))]
    return []


def _make(code: str, message: str, *objects: object) -> Finding:
    severity: Severity = "warning" if code in WARNINGS else "error"
    return Finding(code, message, HINTS[code], *place_of(*objects), severity=severity)
