"""Prints the findings about an agent loop, as the Osmosis SDK's validate_and_report does."""

import sys
from typing import Any

from osmosis_grpc.agent.validator import ValidationResult, validate_agent_loop


def validate_and_report(agent_loop: Any, *, verbose: bool = False) -> ValidationResult:
    """Check an agent loop, print the result, and return it. Errors go to stderr.

    Args:
        agent_loop: The agent loop, or its class.
        verbose: Whether to print warnings, too.
    """
    result = validate_agent_loop(agent_loop)
    counts = f"{result.tool_count} tools, {len(result.errors)} errors, {len(result.warnings)} warnings"
    lines = [f"agent loop {result.agent_name or 'without a name'}: {counts}"]
    for finding in (*result.errors, *(result.warnings if verbose else ())):
        place = f" ({finding.file}:{finding.line})" if finding.file else ""
        lines.append(f"  {finding.severity} {finding.code}: {finding.message}{place}; {finding.hint}")
    (sys.stdout if result.valid else sys.stderr).write("\n".join(lines) + "\n")
    return result
