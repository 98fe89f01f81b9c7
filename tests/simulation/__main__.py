"""Runs seeds of the simulation: `python -m tests.simulation --seed 1 --rollouts 1000`. See docs/simulation.md."""

import argparse
import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.simulation.judge import judged
from tests.simulation.totals import Totals
from tests.simulation.world import Finding, World, quiet, world_of

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
    parser.add_argument(
        "--record",
        type=_file,
        metavar="FILE",
        help="append the totals to a file at the end; tests.simulation.totals adds them",
    )
    given = parser.parse_args()
    gc.freeze()
    gc.disable()
    try:
        with quiet():
            try:
                status = _run(given)
                sys.stdout.flush()
            except BrokenPipeError:  # the program that reads the output, such as head, has ended
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                status = READER_ENDED
            gc.collect()  # ends the agents of killed processes while the log is off
            return status
    finally:
        gc.enable()
        gc.unfreeze()


def _number(least: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers of at least `least`, for an option."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def _file(text: str) -> Path:
    """Returns the path of a file that can be appended to, for an option."""
    try:
        with open(text, "a"):
            return Path(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from None


def _run(given: argparse.Namespace) -> int:
    began = time.monotonic()
    totals = Totals(first=[given.seed])
    shared = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
            while totals.rollouts < given.rollouts and (given.keep_going or not totals.failed):
                _run_one(given.seed + totals.seeds, Path(folder), given, totals)
                totals.seconds = time.monotonic() - began
                if totals.seeds % 20 == 0:
                    print(totals.progress(), flush=True)
    finally:
        if given.record is not None:
            with given.record.open("a") as file:
                file.write(totals.line() + "\n")
    if given.keep_going or not totals.failed:
        print(totals)
    return 1 if totals.failed else 0


def _run_one(seed: int, folder: Path, given: argparse.Namespace, totals: Totals) -> None:
    """Runs a seed, prints what it has found, and adds it to the totals."""
    with closing(world_of(seed, folder)) as world:
        world.run()
        broken, undecided = judged(world.history)
        totals.seeds += 1
        totals.rollouts += world.plan.rollouts
        totals.steps += world.loop.steps
        totals.undecided += undecided
        totals.faults.update(world.faults.made)
        totals.coverage.add(world.history)
        if given.history:
            print(world.history.text())
        if given.digest:
            print(seed, world.history.digest())
        found = [*world.findings, *(Finding(str(one)) for one in broken)]
        if found:
            totals.failed.append(seed)
            _print_failure(seed, world, found)


def _print_failure(seed: int, world: World, found: list[Finding]) -> None:
    print(f"seed {seed} fails:")
    for finding in found[:20]:
        print("  ", finding.what)
        if finding.error is not None:
            traceback.print_exception(finding.error)
    first = next((w.strip(":") for f in found for w in f.what.split() if "-r" in w), "")
    if first:
        print(world.history.story(first))
    print(f"run it again: python -m tests.simulation --seed {seed} --rollouts 1")


if __name__ == "__main__":
    sys.exit(main())
