"""The Osmosis SDK's validation of agent loops and workflows: this package's findings in the SDK's classes and codes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent import validator
from osmosis_grpc.agent.loop import name_problem
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.workflow_validator import validate_workflow

_CODES: Mapping[str, tuple[str, str]] = {
    "get_tools": ("GET_TOOLS_EXCEPTION", "GET_TOOLS_EXCEPTION"),
    "get_tools()": ("GET_TOOLS_RETURNS_NONE", "GET_TOOLS_INVALID_TYPE"),
    "run": ("MISSING_RUN_METHOD", "RUN_NOT_ASYNC"),
    "": ("INVALID_TOOL_TYPE", "INVALID_TOOL_TYPE"),
    "type": ("MISSING_TOOL_TYPE", "UNKNOWN_TOOL_TYPE"),
    "function": ("MISSING_FUNCTION", "INVALID_FUNCTION_TYPE"),
    "function.name": ("MISSING_FUNCTION_NAME", "INVALID_FUNCTION_NAME"),
    "function.description": ("MISSING_FUNCTION_DESCRIPTION", "MISSING_FUNCTION_DESCRIPTION"),
    "function.parameters": ("INVALID_PARAMETERS_TYPE", "INVALID_PARAMETERS_TYPE"),
    "function.parameters.type": ("PARAMETERS_TYPE_NOT_OBJECT", "PARAMETERS_TYPE_NOT_OBJECT"),
}
"""The SDK's codes for each field: one if it is missing, one if it is wrong. Other findings keep this package's code."""
_ERRORS = ("GET_TOOLS_RETURNS_NONE", "MISSING_GRADER")
"""Codes of errors in the SDK that are only warnings in this package."""


@dataclass
class ValidationError:
    """One problem of an agent loop."""

    code: str
    message: str
    field: str | None = None
    details: dict[str, Any] | None = None

    @property
    def hint(self) -> str:
        """What to do; empty if it is not known."""
        return str((self.details or {}).get("hint", ""))

    def __str__(self) -> str:
        return f"[{self.code}] {self.field}: {self.message}" if self.field else f"[{self.code}] {self.message}"


@dataclass
class ValidationResult:
    """All problems of an agent loop. With warnings only, the loop still works."""

    valid: bool
    errors: list[ValidationError] = field(default_factory=list)
    warnings: list[ValidationError] = field(default_factory=list)
    agent_name: str | None = None
    tool_count: int = 0

    def __bool__(self) -> bool:
        return self.valid

    def raise_if_invalid(self) -> None:
        """Raise AgentLoopValidationError if there is an error. Warnings are ignored."""
        if not self.valid:
            raise validator.AgentLoopValidationError(self)


def validate_agent_loop(agent_loop: object, request: RolloutRequest | None = None) -> ValidationResult:
    """Return all problems of an agent loop, or of any other object. Raises nothing.

    Args:
        agent_loop: The agent loop, or its class.
        request: The request to pass to get_tools.
    """
    problem = name_problem(getattr(agent_loop, "name", None)) or ("", "")
    return _converted(validator.validate_agent_loop(agent_loop, request), INVALID_AGENT_NAME=problem[0])


def validate_backend(
    workflow_cls: object, workflow_config: Any = None, grader_cls: object = None, grader_config: Any = None
) -> ValidationResult:
    """Return all problems of a workflow, its grader, and their configurations. Raises nothing."""
    return _converted(validate_workflow(workflow_cls, workflow_config, grader_cls, grader_config))


def _converted(found: validator.ValidationResult, **known: str) -> ValidationResult:
    """Convert findings to the SDK's classes. `known` maps this package's codes to the SDK's."""
    result = ValidationResult(True, agent_name=found.agent_name, tool_count=found.tool_count)
    for finding in found.findings:
        key = finding.field or "-"
        codes = _CODES.get(key.partition("].")[2] if key.startswith("tools[") else key)
        code = codes[not finding.missing] if codes else known.get(finding.code) or finding.code
        details = {"hint": finding.hint, "file": finding.file or "", "line": finding.line or 0}
        error = finding.severity == "error" or code in _ERRORS
        side = result.errors if error else result.warnings
        side.append(ValidationError(code, finding.message, finding.field, details))
    result.valid = not result.errors
    return result


def validate_and_report(agent_loop: Any, *, verbose: bool = False) -> ValidationResult:
    """Check an agent loop, print the result, and return it. Errors go to stderr.

    Args:
        agent_loop: The agent loop, or its class.
        verbose: Whether to print warnings, too.
    """
    result = validate_agent_loop(agent_loop)
    counts = f"{result.tool_count} tools, {len(result.errors)} errors, {len(result.warnings)} warnings"
    lines = [f"agent loop {result.agent_name or 'without a name'}: {counts}"]
    for kind, problems in {"error": result.errors, "warning": result.warnings if verbose else []}.items():
        for problem in problems:
            place = "{file}:{line}".format_map(problem.details or {})
            lines.append(f"  {kind} {problem.code}: {problem.message} ({place}); {problem.hint}")
    (sys.stdout if result.valid else sys.stderr).write("\n".join(lines) + "\n")
    return result
