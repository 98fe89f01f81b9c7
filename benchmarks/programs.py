"""Runs other benchmarks, each in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.figures import progress
from benchmarks.processes import ROOT

NOT_THERE, FAILED = "not there", "failed"


def run(name: str, *arguments: object) -> dict[str, Any]:
    """The figures of `python -m benchmarks.NAME ARGUMENTS --json`.

    {"missing": "not there"} where what is to be measured does not exist yet, {"missing": "failed"} where the run
    went wrong; the program's stderr, which passes through, says why.
    """
    command = ["-m", f"benchmarks.{name}", *map(str, arguments), "--json"]
    progress(" ".join(command[1:-1]))
    ran = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if ran.returncode:
        return {"missing": NOT_THERE if ran.returncode == 2 else FAILED}
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures
