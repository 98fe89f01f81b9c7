"""Runs seeds of the simulation: `python -m tests.simulation --seed 1 --rollouts 1000`. See docs/simulation.md."""

import argparse
import gc
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.simulation.coverage import Coverage
from tests.simulation.judge import findings
from tests.simulation.world import Finding, quiet, world_of

READER_ENDED = 141
"""The exit code of a shell for a program that SIGPIPE has ended."""


def main() -> int:
    """Runs seeds from `--seed` on. Returns 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=_number(0), default=1, help="the first seed [1]")
    parser.add_argument(
        "--rollouts", type=_number(1), default=2_000, help="begin no further seed after so many rollouts [2000]"
    )
    parser.add_argument("--history", action="store_true", help="print every record of each seed's history")
    parser.add_argument("--digest", action="store_true", help="print the digest of each seed's history")
    parser.add_argument("--keep-going", action="store_true", help="run on after a seed that fails")
    given = parser.parse_args()
    gc.freeze()
    gc.disable()
    with quiet():
        try:
            status = _run(given)
            sys.stdout.flush()
        except BrokenPipeError:  # the program that reads the output, such as head, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = READER_ENDED
        gc.collect()  # ends the agents of killed processes while the log is off
        return status


def _number(least: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers of at least `least`, for an option."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def _run(given: argparse.Namespace) -> int:
    began = time.monotonic()
    done = seeds = failed = steps = 0
    faults: Counter[str] = Counter()
    coverage = Coverage()
    seed = given.seed
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        while done < given.rollouts:
            with closing(world_of(seed, Path(folder))) as world:
                world.run()
                done += world.plan.rollouts
                seeds += 1
                steps += world.loop.steps
                faults.update(world.faults.made)
                coverage.add(world.history)
                if given.history:
                    print(world.history.text())
                if given.digest:
                    print(seed, world.history.digest())
                found = [*world.findings, *(Finding(str(one)) for one in findings(world.history))]
                if found:
                    failed += 1
                    print(f"seed {seed} fails:")
                    for finding in found[:20]:
                        print("  ", finding.what)
                        if finding.error is not None:
                            traceback.print_exception(finding.error)
                    first = next((w.strip(":") for f in found for w in f.what.split() if "-r" in w), "")
                    if first:
                        print(world.history.story(first))
                    print(f"run it again: python -m tests.simulation --seed {seed} --rollouts 1")
                    if not given.keep_going:
                        return 1
            seed += 1
            if seeds % 20 == 0:
                rate = done / (time.monotonic() - began)
                print(
                    f"{done} rollouts, {seeds} seeds, {rate * 3600:,.0f} rollouts an hour, {failed} failed", flush=True
                )
    rate = done / (time.monotonic() - began)
    print(f"{done} rollouts, {seeds} seeds, {rate * 3600:,.0f} an hour, {steps / done:.0f} steps each, {failed} failed")
    print(", ".join(f"{kind} {number}" for kind, number in sorted(faults.items())) or "no faults")
    print(coverage.report())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
