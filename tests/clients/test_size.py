"""The trainers of clients/ are short enough to read: lines that are neither blank nor comment."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import ROOT

CLIENTS = ROOT / "clients"


def without_docstrings(source: str) -> str:
    """Returns Python source without its docstrings, and without strings that document an attribute."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)


def without_block_comments(source: str) -> str:
    """Returns TypeScript or Go source without comments that begin a line with `/*`."""
    return re.sub(r"^\s*/\*.*?\*/", "", source, flags=re.DOTALL | re.MULTILINE)


def code_lines(files: list[Path], comment: str, without: Callable[[str], str]) -> int:
    """Returns the number of lines that are neither blank nor comment."""
    lines = [line.strip() for file in files for line in without(file.read_text()).splitlines()]
    return sum(bool(line) and not line.startswith(comment) for line in lines)


@pytest.mark.parametrize(
    ("trainer", "helpers", "pattern"),
    [("go/trainer", "go/wire", "*.go"), ("typescript/src", "typescript/src/wire", "*.ts")],
    ids=["go", "typescript"],
)
def test_a_trainer_is_below_500_lines_of_code_and_its_helpers_below_250(trainer, helpers, pattern):
    """The helpers have no state: names, statuses, equality, and references to chats."""
    for folder, limit in (trainer, 500), (helpers, 250):
        files = sorted((CLIENTS / folder).glob(pattern))
        assert 100 < code_lines(files, "//", without_block_comments) < limit, folder


def test_the_betterproto2_trainer_is_below_600_lines_of_code():
    files = sorted((CLIENTS / "betterproto2").glob("osmosis_trainer*.py"))
    assert 100 < code_lines(files, "#", without_docstrings) < 600


def test_comments_docstrings_and_blank_lines_are_not_counted(tmp_path):
    python, go = tmp_path / "a.py", tmp_path / "a.go"
    python.write_text('"""A page\nof text."""\n\nX = 1\n"""An attribute."""\n# a comment\nY = """\ntext\n"""\n')
    go.write_text("// Package a.\npackage a\n\n/* A block\n   of text. */\nvar x = 1 // the end\n")
    assert code_lines([python], "#", without_docstrings) == 4
    assert code_lines([go], "//", without_block_comments) == 2
