"""docs/reliability.md has a line for every row of the fault catalogue, and what a line names is there."""

import importlib.util
import re

import pytest

from tests.processes import ROOT

ROWS = {
    *(f"F{n}" for n in range(1, 38)),
    *(f"A{n}" for n in range(1, 16)),
    *(f"X{n}" for n in range(1, 20) if n != 14),
    *(f"H{n}" for n in range(1, 8)),
}
TEXT = (ROOT / "docs" / "reliability.md").read_text()
LINES = [line for line in TEXT.splitlines() if re.match(r"\| [FAXH]\d", line)]


def ids(line):
    """The rows that a line is about."""
    return re.findall(r"\b[FAXH]\d+\b", line.split("|")[1])


def test_every_row_has_a_line():
    assert {row for line in LINES for row in ids(line)} >= ROWS


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip())
def test_the_tests_of_each_line_exist(line):
    _, _, done, where, _ = line.split("|")
    named = re.findall(r"(tests/[\w/]+\.py)?((?:::\w+)*)", where)
    path = ""
    for file, test in named:
        path = file or path
        if not file and not test:
            continue
        source = (ROOT / path).read_text()
        for name in filter(None, test.split("::")):
            assert re.search(rf"^(async )?def {name}\(", source, re.M), f"{path}::{name}"
    for module in re.findall(r"python -m ([\w.]+)", where):
        assert importlib.util.find_spec(module), module
    for folder in re.findall(r"(tests/[\w/]+)(?![\w/.])", where):
        assert (ROOT / folder).exists() or (ROOT / f"{folder}.py").exists(), folder
    if not path and "python -m" not in where and "ruff" not in where:
        reason = re.search(r"not (yet|done|to be)|cannot|later", done, re.I)
        assert reason, "neither a test, a command nor a reason"
