"""Writes the page about the programs: which case of test_programs.py passed with which version."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from tests.coding_programs.install import versions

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
HEAD = """\
# Coding programs that were run

The last run of `make test-programs MATRIX=1`, with Python {python}, wrote this page. Each program ran as its preset in
[coding-agents.md](coding-agents.md) starts it, against a token policy whose template refuses late system messages.

"""
CASES = {
    "a_task_with_edits_has_its_reward_and_its_tokens": "a task: reward, tokens, sub-agents",
    "a_program_compacts_its_history_when_the_context_is_full_and_finishes": "a full context",
    "rollouts_at_once_stay_apart": "rollouts at once",
    "no_process_of_a_program_is_left": "cancel, deadline, SIGKILL of the server",
}
MARKS = {"skipped": "not run", "passed": "yes", "failed": "no"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the page if the run was asked for it."""
    if not os.environ.get("OSMOSIS_TEST_MATRIX"):
        return
    results: dict[tuple[str, str], set[str]] = {}
    for outcome in MARKS:
        for report in terminalreporter.stats.get(outcome, ()):
            match = re.search(r"::test_(\w+)\[(?:.*-)??(" + "|".join(versions()) + r")\b", report.nodeid)
            if match:
                results.setdefault((match[2], match[1]), set()).add(outcome)
    rows = [f"| program | version | {' | '.join(CASES.values())} |", "|---" * (2 + len(CASES)) + "|"]
    order = list(MARKS)
    for name, program in versions().items():
        found = [results.get((name, case), {"skipped"}) for case in CASES]
        marks = [MARKS[max(each, key=order.index)] for each in found]
        rows.append(f"| {name} | {program.package} {program.version} | {' | '.join(marks)} |")
    PAGE.write_text(HEAD.format(python=platform.python_version()) + "\n".join(rows) + "\n")
