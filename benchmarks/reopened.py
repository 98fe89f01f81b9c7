"""The time to open a journal with many kept rollouts.

python -m benchmarks.reopened [--rollouts 100000] [--openings 5] [--state-dir DIR] [--json]

The journal is that of benchmarks.full_journal. With --state-dir it is used again if it exists. Each opening is in a new
process, and `open_s` is the median. It includes the check of all checksums of rollouts, and no imports.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Parser, measured, progress, show
from benchmarks.full_journal import fill
from benchmarks.processes import ROOT, environment_with

OPEN = """
import asyncio, sys, time
from pathlib import Path
from osmosis_grpc.storage import SqliteJournal

async def main():
    began = time.perf_counter()
    journal = SqliteJournal(Path(sys.argv[1]))
    print(time.perf_counter() - began)
    journal.close()

asyncio.run(main())
"""


async def measure(folder: Path, rollouts: int, openings: int) -> dict[str, Any]:
    """Write the journal if there is none, and open it several times."""
    if not (folder / "journal.db").exists():
        progress(f"writing {rollouts} rollouts to {folder}")
        await fill(folder, rollouts, 2, 64)
    line = [sys.executable, "-c", OPEN, str(folder)]
    seconds = [
        float(subprocess.run(line, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment_with({})).stdout)
        for _ in range(openings)
    ]
    return {
        "benchmark": "reopened",
        "rollouts": rollouts,
        "openings": openings,
        "open_s": round(statistics.median(seconds), 3),
        "file_mb": round((folder / "journal.db").stat().st_size / 1e6, 1),
    }


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=100_000, openings=5)
    parser.add_argument("--state-dir", type=Path, metavar="DIR")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = given.state_dir or Path(folder, "state")
        show(measured(measure(state, given.rollouts, given.openings)), given.json)


if __name__ == "__main__":
    main()
