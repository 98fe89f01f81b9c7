"""Prints all figures: every row with its floor, its aim and the measured value.

python -m benchmarks.table [--alternations 3] [--quick] [--record FILE]

The modes run in turn in each alternation. A ratio is taken within an alternation, and the median counts. `--quick`
makes small runs, as a test of the programs. A failed run, or a baseline that is not sound, ends the process with exit
code 1; a missed floor does not.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, progress
from benchmarks.processes import run_program

BARE = "bare calls"
MODES = {
    "sdk": 240,
    "tuned": 1200,
    "http": 1000,
    "callback": 800,
    BARE: 800,
    "attach": 4000,
    "attach --no-journal": 4000,
    "attach --ledger LEDGER": 2000,
    "attach --in-flight 1": 300,
    "attach --in-flight 1 --no-journal": 300,
}
"""The modes and the number of their timed rollouts. LEDGER is a new file."""

Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    unit: str
    figure: Callable[[Results], float]
    floor: float | None = None
    aim: float | None = None
    at_least: bool = False
    """Whether more is better."""

    def verdict(self, figure: float) -> str:
        """Return the bound that is reached."""
        for name, bound in (("aim", self.aim), ("floor", self.floor)):
            if bound is not None and (figure >= bound if self.at_least else figure <= bound):
                return name
        return "MISSED" if self.floor is not None else "aim missed" if self.aim is not None else ""


def rate(one: str, other: str) -> Callable[[Results], float]:
    """Return the median ratio of two modes' rollouts/s."""
    return lambda results: statistics.median(
        a["rollouts_per_s"] / b["rollouts_per_s"] for a, b in zip(results[one], results[other], strict=True)
    )


def of(program: str, *path: str) -> Callable[[Results], float]:
    """Return a function that finds a figure of a program by its path."""

    def figure(results: Results) -> float:
        found = results[program]
        for name in path:
            found = found[name]
        return float(found)

    return figure


def _ledger(results: Results) -> float:
    """Return the trainer CPU of a rollout with a ledger over that without one."""
    name = "trainer_cpu_ms_per_rollout"
    pairs = zip(results["attach --ledger LEDGER"], results["attach"], strict=True)
    return float(statistics.median(on[name] / off[name] for on, off in pairs))


def _journal(results: Results) -> float:
    """Return the server CPU that the journal adds to a rollout."""
    name = "server_cpu_ms_per_rollout"
    pairs = zip(results["attach"], results["attach --no-journal"], strict=True)
    return float(statistics.median(on[name] - off[name] for on, off in pairs))


SOUND = (
    Row("baselines: tuned over sdk, rollouts/s", "x", rate("tuned", "sdk"), 4, at_least=True),
    Row(
        "baselines: tuned, server CPU",
        "ms a rollout",
        lambda found: statistics.median(run["server_cpu_ms_per_rollout"] for run in found["tuned"]),
        5,
    ),
)
ROWS = (
    Row("rollouts/s over Attach, against sdk", "x", rate("attach", "sdk"), 20, 30, at_least=True),
    Row("rollouts/s over Attach, against tuned", "x", rate("attach", "tuned"), 1.5, 2.5, at_least=True),
    Row("without the journal, against tuned", "x", rate("attach --no-journal", "tuned"), 2.2, 4, at_least=True),
    Row("rollouts/s with a callback, against sdk", "x", rate("callback", "sdk"), 7, 12, at_least=True),
    Row("rollouts/s with a callback, against the bare calls", "x", rate("callback", BARE), 0.5, 0.8, at_least=True),
    Row("the bare calls of such a rollout, against tuned", "x", rate(BARE, "tuned"), at_least=True),
    Row("rollouts/s through our HTTP gateway, against sdk", "x", rate("http", "sdk"), 4, 8, at_least=True),
    Row("what the journal adds, server CPU", "ms a rollout", _journal, 0.4, 0.2),
    Row("the journal's file, over the arrays' size", "x", of("journal_bytes", "times_arrays"), 3, 1.5),
    Row("what the journal writes, over the arrays' size", "x", of("journal_bytes", "written_times_arrays")),
    Row("trainer CPU with a ledger, against none", "x", _ledger, 2, 1.3),
    Row(
        "one rollout at a time, with the journal, against none",
        "x",
        rate("attach --in-flight 1", "attach --in-flight 1 --no-journal"),
        aim=0.5,
        at_least=True,
    ),
    Row("opening a journal of 100,000 rollouts", "s", of("reopened", "open_s"), 2, 0.5),
    Row(
        "bytes, 8 turns x 2,048 tokens, over the arrays' size", "x", of("growth", "times_arrays_at_8_turns"), 1.05, 1.03
    ),
    Row("bytes at 128 turns over bytes at 32 turns", "x", of("growth", "times_from_32_to_128_turns"), 4.1, 4.02),
    Row("memory with 10,000 rollouts in flight", "MB", of("in_flight", "server_rss_mb"), 550, 300),
    Row("write + read 4,096 tokens", "us", of("tokens", "write_read_us"), 10, 6),
    Row(
        "time added to a chat, 1 in flight, p50, Attach", "ms", of("added attach", "one_in_flight", "p50_ms"), 0.5, 0.3
    ),
    Row("time added to a chat, 256 in flight, p99, Attach", "ms", of("added attach", "256_in_flight", "p99_ms"), 20, 8),
    Row("time added to a chat, 1 in flight, p50, callback", "ms", of("added callback", "one_in_flight", "p50_ms")),
    Row("time added to a chat, 256 in flight, p99, callback", "ms", of("added callback", "256_in_flight", "p99_ms")),
    Row("server ready after start", "s", of("startup", "ready_s"), 1, 0.5),
    Row("--help", "s", of("startup", "help_s"), 0.35, 0.15),
    Row("two trainers' rate beside a stalled third", "x", of("stalled", "ratio"), 0.9, at_least=True),
    Row(
        "serve --workers 2, against one process, 5 ms CPU a turn", "x", of("workers", "ratio"), 1.7, 1.9, at_least=True
    ),
)


def collect(alternations: int, quick: bool) -> Results:
    """Run all programs and return their figures."""
    results: Results = {mode: [] for mode in MODES}
    for _ in range(alternations):
        for mode, rollouts in MODES.items():
            some = ["--rollouts", max(rollouts // 20, 32) if quick else rollouts]
            program = ("bare_calls",) if mode == BARE else ("rollouts", "--mode", *mode.split(), "--no-bytes")
            with tempfile.TemporaryDirectory() as folder:
                ledger = str(Path(folder, "ledger.db"))
                results[mode].append(run_program(*(ledger if word == "LEDGER" else word for word in program), *some))
    small = {"--rollouts": 64} if quick else {}
    for name, kind, options in (
        ("growth", "growth", small),
        ("journal_bytes", "journal_bytes", small),
        ("reopened", "reopened", {"--rollouts": 1000, "--openings": 1} if quick else {}),
        ("in_flight", "in_flight", {"--rollouts": 500, "--latency": 0.5} if quick else {}),
        ("added attach", "added_time", {"--mode": "attach"} | small),
        ("added callback", "added_time", {"--mode": "callback"} | small),
        ("tokens", "tokens", {}),
        ("startup", "startup", {"--starts": 1} if quick else {}),
        ("stalled", "noisy_neighbours", {"--alternations": 1, "--seconds": 1} if quick else {}),
        ("workers", "workers", {"--alternations": 1, "--rollouts": 32} if quick else {}),
    ):
        results[name] = run_program(kind, *[part for option in options.items() for part in option])
    return results


def fill(rows: Sequence[Row], results: Results) -> list[dict[str, Any]]:
    """Return the rows with their measured values."""
    filled = []
    for row in rows:
        try:
            figure: float | None = round(row.figure(results), 3)
        except KeyError:  # the run failed
            figure = None
        filled.append(
            {
                "what": row.what,
                "unit": row.unit,
                "floor": row.floor,
                "aim": row.aim,
                "measured": figure,
                "verdict": row.verdict(figure) if figure is not None else "not measured",
            }
        )
    return filled


def text(filled: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = ["| what | unit | floor | aim | measured | reached |", "|---|---|---|---|---|---|"]
    for row in filled:
        cells = ["-" if row[name] is None else f"{row[name]:g}" for name in ("floor", "aim", "measured")]
        lines.append("| " + " | ".join([row["what"], row["unit"], *cells, row["verdict"]]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write everything as JSON")
    given = parser.parse_args()
    results = collect(given.alternations, given.quick)
    sound, rows = fill(SOUND, results), fill(ROWS, results)
    if given.record:
        given.record.write_text(json.dumps({"machine": machine(), "rows": sound + rows, "runs": results}, indent=1))
    print(text(sound + rows))
    failed = [
        name
        for name, found in results.items()
        if any("missing" in one for one in (found if isinstance(found, list) else [found]))
    ]
    for name in failed:
        progress(f"failed: {name}")
    for row in sound:
        if row["verdict"] != "floor":
            progress(f"not sound: {row['what']} is {row['measured']}")
    sys.exit(bool(failed) or any(row["verdict"] != "floor" for row in sound))


if __name__ == "__main__":
    main()
