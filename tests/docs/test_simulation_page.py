"""The commands of docs/simulation.md run, and what the page names is there."""

import re
import subprocess
import sys

import pytest

from tests.processes import ROOT
from tests.simulation.judge import ORACLES

TEXT = (ROOT / "docs" / "simulation.md").read_text()
COMMANDS = [
    line.split("#")[0].strip() for line in TEXT.splitlines() if line.startswith(("python -m tests.", "make sim"))
]


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("python")])
def test_a_command_of_the_page_runs(command):
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_make_targets_of_the_page_exist():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert {command.split()[1] for command in COMMANDS if command.startswith("make")} <= set(targets)


def test_the_page_names_every_oracle():
    names = {oracle.__name__.replace("_", " ") for oracle in ORACLES}
    assert {name for name in names if name not in TEXT} == set()


def test_the_files_of_the_page_exist():
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists(), name
