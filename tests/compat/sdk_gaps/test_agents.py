"""Three agents for the Osmosis SDK 0.2.14 and their unit tests run with the prefix changed, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

AGENTS = Path(__file__).parent / "agents"
NAMES = sorted(path.stem for path in AGENTS.glob("*.py") if not path.stem.startswith("test_"))


def test_gap_there_are_three_agents_for_the_sdk():
    assert len(NAMES) == 3
    for path in AGENTS.glob("*.py"):
        assert "osmosis_ai" in path.read_text()
        assert "osmosis_grpc" not in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gap_the_unit_tests_of_an_agent_run(name, tmp_path):
    for file in (f"{name}.py", f"test_{name}.py"):
        (tmp_path / file).write_text((AGENTS / file).read_text().replace("osmosis_ai", "osmosis_grpc"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
