"""Type checkers know the public names: a name that does not exist is an error, and no name is Any."""

import subprocess
import sys
from pathlib import Path

import pytest

import osmosis_grpc

ROOT = Path(osmosis_grpc.__file__).parent.parent

PROGRAM = """\
import osmosis_grpc
import osmosis_grpc.rollout.client
import osmosis_grpc.rollout.server
import osmosis_grpc.rollout.testing
from osmosis_grpc import osmosis_reward
from osmosis_grpc.rollout import RolloutContext, execute_tool_calls
from osmosis_grpc.rollout import RolloutContxt  # wrong
from osmosis_grpc import osmosis_rewrd  # wrong
from osmosis_grpc.protocol.errors import Unavaliable  # wrong
from osmosis_grpc.trainer import Trainr  # wrong
from osmosis_grpc.server import AgentServr  # wrong
from osmosis_grpc.testing import run_rolout  # wrong

osmosis_grpc.rollout.client.OsmosisLLMClent  # wrong
osmosis_grpc.rollout.server.creat_app  # wrong
osmosis_grpc.rollout.testing.fake_tokn_ids  # wrong
RolloutContext.complet  # wrong
execute_tool_calls(1)  # wrong
reveal_type(osmosis_reward)
"""


@pytest.mark.slow
def test_wrong_names_are_type_errors(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == wrong, done.stdout + done.stderr
    assert "Revealed type is" in done.stdout
    assert 'Revealed type is "Any"' not in done.stdout
