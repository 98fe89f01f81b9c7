"""Runs other benchmarks, each in a separate process."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.figures import progress
from benchmarks.processes import ROOT


def run(name: str, *arguments: object) -> dict[str, Any]:
    """Return the figures of `python -m benchmarks.NAME ARGUMENTS --json`.

    A run that goes wrong gives {"missing": "failed"}; its stderr, which passes through, says why.
    """
    command = ["-m", f"benchmarks.{name}", *map(str, arguments), "--json"]
    progress(" ".join(command[1:-1]))
    ran = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if ran.returncode:
        return {"missing": "failed"}
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures
