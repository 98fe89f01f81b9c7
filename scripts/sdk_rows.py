"""Writes the tests into the tables of docs/compatibility.md; with --check, only checks them.

A test belongs to a row if it has the marker `row` with the row's name: "SDK 7", "SDK S2" or "ARL 7". The page has the
rows themselves, with the marks 7, S2 and ARL 7.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
ROW = re.compile(r"^\| ((?:S|ARL )?\d+) \| (.*) \| (`test_\w+`|-) \|$", re.M)
ELSEWHERE = {"78", "79"}
"""Rows that other features test."""
NONE = "-"
"""What the table shows for a row without a test."""


def tests_of() -> dict[str, list[str]]:
    """Return the names of the tests of each row, by the row's mark."""
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.row(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, "decorator_list", ()):
                if ast.unparse(mark).startswith("pytest.mark.row("):
                    for row in mark.args:
                        tests.setdefault(row.value.removeprefix("SDK "), []).append(node.name)
    return tests


def problems(page: str) -> Iterator[str]:
    """Yield a line for each row that lacks a test or names none of its own, and for each marker without a row."""
    tests = tests_of()
    rows = {mark: shown.strip("`") for mark, _, shown in ROW.findall(page)}
    for mark, shown in rows.items():
        if mark not in tests and mark not in ELSEWHERE:
            yield f"row {mark} has no test"
        elif shown not in tests.get(mark, [NONE]):
            yield f"row {mark} of {PAGE.name} is old: run python scripts/sdk_rows.py"
    for mark in tests.keys() - rows.keys():
        yield f"there is no row {mark} for {', '.join(tests[mark])}"


def main() -> int:
    """Write the tests, or check them. Returns the exit code."""
    if "--check" not in sys.argv:
        tests = {mark: f"`{names[0]}`" for mark, names in tests_of().items()}
        page = ROW.sub(lambda row: f"| {row[1]} | {row[2]} | {tests.get(row[1], NONE)} |", PAGE.read_text())
        PAGE.write_text(page)
    lines = list(problems(PAGE.read_text()))
    for line in lines:
        print(line, file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
