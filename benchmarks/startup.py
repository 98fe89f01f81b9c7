"""The time until the server is ready and until --help is printed: the median of several starts.

python -m benchmarks.startup [--starts 5] [--json]

The server is ready when its first record is on stdout: gRPC and HTTP listen, the agent is loaded. All modules are
compiled before.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.figures import progress, run
from benchmarks.processes import ROOT, ready_record, running, serve_command


async def measure(starts: int) -> dict[str, Any]:
    """Measure the seconds of each start. The first start does not count."""
    ready, help_ = [], []
    for number in range(starts + 1):
        progress(f"startup: {number} of {starts}")
        ready.append(_ready())
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "osmosis_grpc.serve", "--help"], check=True, cwd=ROOT, capture_output=True
        )
        help_.append(time.perf_counter() - began)
    return {
        "benchmark": "startup",
        "starts": starts,
        "ready_s": round(statistics.median(ready[1:]), 3),
        "help_s": round(statistics.median(help_[1:]), 3),
        "all_ready_s": [round(value, 3) for value in ready[1:]],
        "all_help_s": [round(value, 3) for value in help_[1:]],
    }


def _ready() -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with running(["-m", *serve_command(100, http=True)], core=0, folder=folder) as process:
            ready_record(process)
            return time.perf_counter() - began


if __name__ == "__main__":
    run(__doc__, measure, starts=5)
