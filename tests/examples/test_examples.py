"""The examples run as they stand."""

import ast
import re

from tests.processes import ROOT, run, server_process

EXAMPLES = ROOT / "examples"


def test_the_minimal_trainer_drives_the_calculator():
    source = EXAMPLES / "trainer_minimal.py"
    assert len(source.read_text().splitlines()) < 40
    with server_process("-m", "server:agent_loop", cwd=EXAMPLES / "calculator") as (_, address):
        result = run(str(source), address, str(EXAMPLES / "calculator" / "test_data.jsonl"))
    assert result.returncode == 0, result.stderr
    rows = sorted(result.stdout.splitlines(), key=lambda row: "7 / 2" in row)
    assert [re.search(r"reward (\S+)", row)[1] for row in rows] == ["1.0", "1.0", "1.0", "0.0"]
    assert all("COMPLETED" in row for row in rows)


def test_there_is_no_eval_anywhere():
    for folder in ("examples", "osmosis_grpc", "gateway"):
        for path in (ROOT / folder).rglob("*.py"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
            generated = {"exec"} if path == ROOT / "osmosis_grpc" / "types" / "quick.py" else set()  # as dataclasses do
            assert names & {"eval", "exec", "compile"} == generated, path
