"""The migrate command: it changes import lines and nothing else, and prints what is left."""

import json

import pytest

from tests.cli.in_process import command

PROGRAM = '''\
"""A server of osmosis_ai."""  # the text names the package

import osmosis_ai
import osmosis_ai.rollout as sdk
from osmosis_ai.rollout import (  # many names
    AgentWorkflow,
    ControllerAuth,
)
from  osmosis_ai.rollout.backend.local  import LocalBackend; from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.platform.api import Client
from . import osmosis_ai as mine

äöü = osmosis_ai.rollout.RolloutStatus
app = create_rollout_server(backend=LocalBackend(workflow="osmosis_ai.mine:Workflow"))
keyed = create_rollout_server(backend=LocalBackend(workflow=AgentWorkflow), api_key="secret")
'''
CHANGED = {3, 4, 5, 9, 13}
LEFT = {1, 7, 10, 14}
LIBRARY = """\
from workers.agentic_rollout import AgenticRollout, AgenticRolloutConfig
from workers.core import StepType, ToolFactory
from workers.mine import Worker
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with programs, and with files that are left alone."""
    files = {
        "main.py": PROGRAM,
        "library.py": LIBRARY,
        "other.py": "print('nothing of it')\n",
        "broken.py": "from osmosis_ai import (\n",
        "crlf.py": "import os\r\nfrom osmosis_ai.rollout import Grader\r\n",
        "pyproject.toml": '[project]\ndependencies = [\n    "osmosis-ai[server]>=0.3.0,<0.4",\n]\n',
        "requirements.txt": "osmosis-ai==0.3.8\nosmosis-aid\n",
        "configs/eval/mine.toml": '[experiment]\nrollout = "mine"\n',
        ".venv/lib/osmosis.py": "import osmosis_ai\n",
    }
    for name, text in files.items():
        path = tmp_path / "program" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return tmp_path / "program"


def left(out, name):
    """Return the lines of a file that are left, by the records of a run."""
    rows = [json.loads(line) for line in out.splitlines()]
    return {row["line"] for row in rows if row["event"] == "left" and row["path"].endswith(name)}


async def test_import_lines_change_and_nothing_else(folder, capfd):
    done = await command("migrate", str(folder), "--json")
    assert done.exit_code == 1
    out = capfd.readouterr().out
    lines = (folder / "main.py").read_text().splitlines()
    before = PROGRAM.splitlines()
    assert {number for number, (a, b) in enumerate(zip(before, lines, strict=True), 1) if a != b} == CHANGED
    for number in CHANGED:
        assert lines[number - 1] == before[number - 1].replace("osmosis_ai", "osmosis_grpc")
    assert left(out, "main.py") == LEFT
    assert (folder / "crlf.py").read_bytes().endswith(b"from osmosis_grpc.rollout import Grader\r\n")
    assert (folder / ".venv/lib/osmosis.py").read_text() == "import osmosis_ai\n"
    assert (folder / "broken.py").read_text() == "from osmosis_ai import (\n"
    assert left(out, "broken.py") == {1}
    assert left(out, "pyproject.toml") == {3}
    assert left(out, "requirements.txt") == {1}
    assert left(out, "mine.toml") == {1}


async def test_a_second_run_changes_nothing_and_names_what_has_no_counterpart_again(folder, capfd):
    await command("migrate", str(folder))
    capfd.readouterr()
    assert (await command("migrate", str(folder), "--json")).exit_code == 1
    out = capfd.readouterr().out
    assert [row for row in map(json.loads, out.splitlines()) if row["event"] == "change"] == []
    assert 10 in left(out, "main.py")


async def test_the_names_of_the_library_move_and_an_own_package_stays(folder, capfd):
    await command("migrate", str(folder), "--json")
    assert (folder / "library.py").read_text().splitlines() == [
        "from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig",
        "from osmosis_grpc.agentic import StepType, ToolFactory",
        "from workers.mine import Worker",
    ]
    assert left(capfd.readouterr().out, "library.py") == {2}


async def test_check_changes_nothing(folder):
    texts = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert (await command("migrate", str(folder), "--check")).exit_code == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == texts


async def test_a_file_without_more_to_do_ends_with_0(folder):
    assert (await command("migrate", str(folder / "crlf.py"))).exit_code == 0
    assert (await command("migrate", str(folder / "other.py"), "--check")).exit_code == 0


async def test_a_folder_that_is_missing_is_refused(tmp_path):
    assert (await command("migrate", str(tmp_path / "nowhere"))).exit_code == 2


async def test_a_file_keeps_its_mode_and_a_link_stays_one(folder):
    target = folder / "crlf.py"
    target.chmod(0o755)
    link = folder / "link.py"
    link.symlink_to("crlf.py")
    await command("migrate", str(folder))
    assert target.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink()
