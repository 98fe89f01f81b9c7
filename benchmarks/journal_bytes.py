"""The bytes that the journal takes, for each rollout, compared with the size of the rollout's token arrays.

python -m benchmarks.journal_bytes [--mode attach] [--rollouts 1000] [--turns 8] [--tokens 256] [--in-flight 64]
    [--latency 0] [--json]

`file_bytes` is what the journal's file grows by. `written_bytes` is what the server writes to the disk meanwhile: the
write-ahead log, its copy into the file, and callback credentials. `times_arrays` and `written_times_arrays` divide them
by the size of the arrays: 8 bytes for each sampled token (id and logprob), 4 for each id of another message.
"""

import itertools
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken
from benchmarks.flight import Work, new_names, run_work
from benchmarks.grpc_trainers import GrpcTrainer
from benchmarks.measure import Watch, finish
from benchmarks.processes import Server, server
from benchmarks.tap import straight


async def measure(work: Work) -> dict[str, Any]:
    """Run rollouts against a server with a journal, and measure its file and its writes."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        journal = Path(folder, "journal.db")
        names = new_names()
        with server(work.mode, work.in_flight, ["--state-dir", folder]) as started:  # it makes the file
            await _run(work, started, list(itertools.islice(names, work.in_flight)))
        before = journal.stat().st_size
        with server(work.mode, work.in_flight, ["--state-dir", folder]) as started:
            at_start = _written(started)
            await _run(work, started, list(itertools.islice(names, work.rollouts)))
            written = _written(started) - at_start
        file = journal.stat().st_size - before  # a server that has ended leaves no write-ahead log
    arrays = work.array_bytes
    return {
        "benchmark": "journal_bytes",
        "mode": work.mode,
        "rollouts": work.rollouts,
        "turns": work.turns,
        "tokens": work.tokens,
        "in_flight": work.in_flight,
        "array_bytes": arrays,
        "file_bytes": round(file / work.rollouts),
        "written_bytes": round(written / work.rollouts),
        "times_arrays": round(file / work.rollouts / arrays, 3) if arrays else None,
        "written_times_arrays": round(written / work.rollouts / arrays, 3) if arrays else None,
    }


async def _run(work: Work, started: Server, names: list[str]) -> None:
    async with GrpcTrainer(work, started, straight) as trainer:
        lost = await finish(trainer, names, Watch(started, ()), work.stalled_after)
    if lost:
        raise Broken(f"{lost} rollouts were lost")


def _written(started: Server) -> int:
    """Return the bytes that the server has written to files so far."""
    rows = Path(f"/proc/{started.pid}/io").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("write_bytes:")))


if __name__ == "__main__":
    run_work(__doc__, measure, mode="attach", modes=("attach", "callback"))
