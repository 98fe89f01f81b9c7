"""Writes the page about programs and frameworks: which case passed with which version.

The row of a program that was not run stays as it was.
"""

import os
import platform
import re
from pathlib import Path
from typing import Any

from tests.coding_programs.install import Version, versions

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
HEAD = """\
# Programs and frameworks that were run

The last runs of `make test-programs MATRIX=1`, with Python {python}, wrote this page. Each program ran as its preset in
[coding-agents.md](coding-agents.md) starts it, and each framework as a script of `serve --command`, against a token
policy whose template refuses late system messages.

"""
PROGRAMS = {
    "a task: reward, tokens, sub-agents": "a_task_with_edits_has_its_reward_and_its_tokens",
    "a full context": "a_program_compacts_its_history_when_the_context_is_full_and_finishes",
    "rollouts at once": "rollouts_at_once_stay_apart",
    "cancel, deadline, SIGKILL of the server": "no_process_of_a_program_is_left",
}
"""The columns of the programs, and the test of each."""
FRAMEWORKS = {
    "tools": "a_case_of_a_framework.*tools",
    "streams": "a_case_of_a_framework.*(stream|messages_of)",
    "structured replies": "a_case_of_a_framework.*structured",
    "a full context": "a_framework_gets_the_error",
}
MARKS = {"skipped": "not run", "passed": "yes", "failed": "no"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the page if the run was asked for it."""
    if not os.environ.get("OSMOSIS_TEST_MATRIX"):
        return
    results = [
        (report.nodeid.partition("::test_")[2], outcome)
        for outcome in MARKS
        for report in terminalreporter.stats.get(outcome, ())
    ]
    tables = [
        _table("program", versions(), PROGRAMS, results),
        _table("framework", versions(frameworks=True), FRAMEWORKS, results),
    ]
    PAGE.write_text(HEAD.format(python=platform.python_version()) + "\n\n".join(tables) + "\n")


def _table(what: str, rows: dict[str, Version], columns: dict[str, str], results: list[tuple[str, str]]) -> str:
    """Return the table of the results. The worst result of the tests of a cell counts."""
    order, before = list(MARKS), PAGE.read_text().splitlines() if PAGE.exists() else []
    lines = [f"| {what} | version | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for name, version in rows.items():
        own = [(test, outcome) for test, outcome in results if re.search(rf"\[(.*-)??{name}(-\w+)?\]", test)]
        known = next((line for line in before if line.startswith(f"| {name} |")), None)
        if known is not None and all(outcome == "skipped" for _, outcome in own):
            lines.append(known)
            continue
        cells = []
        for pattern in columns.values():
            found = [outcome for test, outcome in own if re.match(pattern, test)]
            cells.append(MARKS[max(found, key=order.index)] if found else "")
        lines.append(f"| {name} | {version.package} {version.version} | {' | '.join(cells)} |")
    return "\n".join(lines)
