"""What is said where an extra is missing: a command that works, from where the package itself came."""

import os
import re
import shlex

import pytest

from osmosis_grpc.protocol.errors import DISTRIBUTION, missing_extra
from tests.processes import ROOT, run

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


def without(folder, *modules):
    """An environment in which these modules are not installed."""
    for name in modules:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
    return os.environ | {"PYTHONPATH": str(folder)}


def advised(text):
    """The command that a message ends with."""
    return shlex.split(text.rpartition(": ")[2])


@pytest.mark.parametrize(
    ("module", "arguments", "what"),
    [
        ("typer", ("-m", "osmosis_grpc", "demo"), "the command line"),
        pytest.param(
            "watchfiles", ("-m", "osmosis_grpc.serve", *CALCULATOR, "--reload"), "--reload", marks=pytest.mark.slow
        ),
    ],
)
def test_a_missing_extra_is_one_line_that_can_be_pasted(tmp_path, module, arguments, what):
    done = run(*arguments, env=without(tmp_path, module), cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"{what} needs the extra 'server': pip install ")
    assert advised(line) == ["pip", "install", "-e", f"{ROOT}[server]"]


def test_the_name_of_the_distribution_is_written_once():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nname = "{DISTRIBUTION}"\n' in project
    sources = [*(ROOT / "osmosis_grpc").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]
    advising = {path.name for path in sources if "pip install" in path.read_text()}
    assert advising == {"errors.py", "init.py", "loader.py"}  # the last two name packages of others
    assert not re.search(rf"pip install '?{DISTRIBUTION}", (ROOT / "osmosis_grpc/protocol/errors.py").read_text())
    assert f"'{DISTRIBUTION}" not in missing_extra("x", "server")
