"""Switches safeguards of the product off, one after the other, and runs seeds until an oracle finds the fault.

python -m tests.simulation.ablations [NAME ...] [--seeds 1000] [--rollouts 12] [--list]

It prints the seed and the oracle for each safeguard. It ends with 1 if a fault was not found.
"""

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.ablations.search import found_by
from tests.simulation.ablations.table import TABLE

MEMORY = Path("/dev/shm")


def main() -> int:
    """Returns 1 if a fault was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.ablations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="a safeguard of --list; all without one")
    parser.add_argument("--seeds", type=int, default=1000, help="give up after so many seeds [1000]")
    parser.add_argument("--rollouts", type=int, default=12, help="rollouts of a seed [12]")
    parser.add_argument("--list", action="store_true", help="print the safeguards, and what goes wrong without them")
    given = parser.parse_args()
    if unknown := sorted(set(given.name) - set(TABLE)):
        parser.error(f"no such safeguard: {', '.join(unknown)}; --list shows them")
    if given.list:
        for one in TABLE.values():
            print(f"{one.name:40} {one.breaks}")
        return 0
    gc.freeze()
    gc.disable()
    missed = []
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for name in given.name or TABLE:
            began = time.monotonic()
            found = found_by(TABLE[name], Path(folder), seeds=given.seeds, rollouts=given.rollouts)
            text = f"seed {found.seed}, {found.oracle}: {found.what}" if found else f"not found in {given.seeds} seeds"
            print(f"{name:40} {time.monotonic() - began:6.1f} s  {text}", flush=True)
            missed += [name] if found is None else []
    print(f"{len(given.name or TABLE) - len(missed)} of {len(given.name or TABLE)} were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
