"""Checks a workflow and its grader before they run, and reports all problems at once.

The codes are the eight codes of the Osmosis SDK and MISSPELT_CONFIG_KEY.
"""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.import_hints import import_hint
from osmosis_grpc.agent.loader import is_runnable
from osmosis_grpc.agent.validator import (
    Finding,
    ValidationResult,
    name_findings,
    one_line,
    place_of,
    validate_agent_loop,
)
from osmosis_grpc.agent.workflow import AgentWorkflow, BaseConfig, misspelt
from osmosis_grpc.agent.workflow_files import FoundWorkflow
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable


def validate_agent(agent: Any) -> ValidationResult:
    """Return all problems of an agent loop or of a workflow. Raises nothing."""
    if isinstance(agent, FoundWorkflow | WorkflowRunnable):
        return validate_workflow(agent.workflow, agent.config, agent.grader, agent.grader_config)
    if is_runnable(agent):  # it has no code of an agent loop
        return ValidationResult(agent.name, tuple(name_findings(agent.name, f"{agent.name!r:.80}", agent)))
    return validate_agent_loop(agent)


def validate_workflow(
    workflow: object, config: Any = None, grader: object = None, grader_config: Any = None
) -> ValidationResult:
    """Return all problems of a workflow, its configuration and its grader. Raises nothing.

    Both classes are called, and not run.

    Args:
        workflow: The class of the workflow.
        config: Its configuration.
        grader: The class of the grader.
        grader_config: The configuration of the grader.
    """
    name = (config.name.strip() if config is not None else "") or getattr(workflow, "__name__", None)
    findings = list(name_findings(name, f"{name!r:.80}", workflow))
    valid_name = None if findings else str(name)
    findings += [*_misspelt(config), *_misspelt(grader_config)]
    wrong = list(_class(workflow, AgentWorkflow, ("run",), "INVALID_WORKFLOW_CLASS", "WORKFLOW_RUN_NOT_ASYNC"))
    findings += wrong or _instance(workflow, copy.deepcopy, config, "WORKFLOW_INIT_FAILED")
    if grader is None:
        text = f"there is no grader for {name}, so its samples get no reward"
        hint = "add a subclass of osmosis_grpc.agent.Grader, unless the trainer computes the rewards"
        findings.append(Finding("MISSING_GRADER", text, hint, *place_of(workflow), severity="warning"))
    else:
        findings += validate_grader(grader, grader_config)
    return ValidationResult(valid_name, tuple(findings))


def validate_grader(grader: object, config: Any = None) -> list[Finding]:
    """Return all problems of a grader and its configuration. The class is called, and not run. Raises nothing."""
    methods = "grade", "grade_group"
    wrong = list(_class(grader, Grader, methods, "INVALID_GRADER_CLASS", "GRADER_GRADE_NOT_ASYNC"))
    return wrong or list(_instance(grader, lambda same: same, config, "GRADER_INIT_FAILED"))


def _misspelt(config: Any) -> Iterator[Finding]:
    """Yield a warning for each value that the code gives under a name that looks like the name of a field."""
    extra = (isinstance(config, BaseConfig) and config.model_extra) or {}
    hint = "correct the name where the configuration is made, or declare a field of this name"
    for name, text in (misspelt(type(config), extra, type(config).model_fields) if extra else {}).items():
        at = place_of(type(config))
        yield Finding("MISSPELT_CONFIG_KEY", f"{name}: {text}", hint, *at, severity="warning")


def _class(cls: Any, base: type, methods: tuple[str, ...], invalid: str, not_async: str) -> Iterator[Finding]:
    """Yield the findings about a class and its methods. The first method is necessary."""
    hint = f"derive the class from osmosis_grpc.agent.{base.__name__}, and add async def {methods[0]}(self, ctx)"
    if not isinstance(cls, type) or not issubclass(cls, base) or cls is base:
        named = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        yield Finding(invalid, f"{named} is not a subclass of {base.__name__}", hint, *place_of(cls))
        return
    for name in methods:
        method = getattr(cls, name, None)
        if getattr(method, "__isabstractmethod__", False) or not callable(method):
            yield Finding(invalid, f"{cls.__name__} has no method {name}", hint, *place_of(cls))
        elif not inspect.iscoroutinefunction(inspect.unwrap(method)):
            advice = f"write async def {name}, without yield"
            yield Finding(not_async, f"{name} of {cls.__name__} is not async", advice, *place_of(method, cls))


def _instance(cls: Any, prepared: Any, config: Any, code: str) -> Iterator[Finding]:
    """Yield the finding about a class that cannot be called with its configuration."""
    try:
        cls(prepared(config))
    except (Exception, SystemExit) as error:
        hint = "make __init__ accept the configuration, or None, and leave work that can fail to the other methods"
        text = f"{cls.__name__}(config) raised {one_line(error)}"
        yield Finding(code, text, import_hint(error, hint), *place_of(getattr(cls, "__init__"), cls))  # noqa: B009
