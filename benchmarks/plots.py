"""Draws the cost of a rollout against turns, tokens per turn and rollouts in flight.

python -m benchmarks.plots [--folder docs/plots] [--record FILE | --from FILE] [--mode MODE ...] [--scale TIMES]

A sweep changes one parameter of 8 turns x 256 tokens, 64 in flight, and has one picture. `--record` writes the figures
as JSON, `--from` draws recorded ones. Failed points, and points that would take *sdk* minutes, are left out with a
message.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import machine, progress
from benchmarks.processes import ROOT, run_program

MODES = ("attach", "callback", "tuned", "sdk")
SWEEPS = {"turns": (8, 32, 128), "tokens": (0, 256, 2048), "in_flight": (1, 32, 256, 2048)}
BASE = {"turns": 8, "tokens": 256, "in_flight": 64}
UNBEARABLE = {("sdk", "turns", 128), ("sdk", "in_flight", 2048)}
CHATS = {"attach": 16_000, "callback": 6_000, "tuned": 8_000, "sdk": 1_600}
"""The number of chats that are timed at a point. They take about the same time in each mode."""

LABELS = {"turns": "turns", "tokens": "tokens per turn", "in_flight": "rollouts in flight"}
PANELS = {
    "server_cpu_ms_per_rollout": ("server CPU, ms a rollout", 1.0),
    "wire_bytes_per_rollout": ("bytes between the processes, KB a rollout", 1e-3),
    "rollouts_per_s": ("rollouts/s", 1.0),
    "server_rss_mb": ("server memory at its peak, MB", 1.0),
}
"""Each figure with its label and its factor."""


def collect(modes: Sequence[str], scale: float) -> list[dict[str, Any]]:
    """Return the figures of every point of every sweep, with the name of the sweep."""
    points = []
    for sweep, values in SWEEPS.items():
        for value in values:
            for mode in modes:
                if (mode, sweep, value) in UNBEARABLE:
                    progress(f"left out: {mode} at {value} {LABELS[sweep]}")
                    continue
                work = BASE | {sweep: value}
                rollouts = max(int(CHATS[mode] * scale) // work["turns"], 2 * work["in_flight"])
                options = [part for name, given in work.items() for part in (f"--{name.replace('_', '-')}", given)]
                figures = run_program("rollouts", "--mode", mode, "--rollouts", rollouts, *options)
                if "missing" in figures:
                    progress(f"{figures['missing']}: {mode} at {value} {LABELS[sweep]}")
                else:
                    points.append({"sweep": sweep} | figures)
    return points


def draw(points: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write one PNG for each sweep and return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for sweep in SWEEPS:
        figure, axes = pyplot.subplots(1, len(PANELS), figsize=(4.2 * len(PANELS), 4.6), layout="constrained")
        for panel, (name, (label, factor)) in zip(axes, PANELS.items(), strict=True):
            for mode in MODES:
                line = sorted(
                    (point[sweep], point[name] * factor)
                    for point in points
                    if point["sweep"] == sweep and point["mode"] == mode
                )
                if line:
                    panel.plot(*zip(*line, strict=True), marker="o", label=mode)
            # Tokens begin at 0, which has no logarithm.
            panel.set_xscale("symlog", base=2, linthresh=64) if sweep == "tokens" else panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
            panel.yaxis.set_minor_formatter(ticker.NullFormatter())
            panel.set_xticks(SWEEPS[sweep], [f"{value:,}" for value in SWEEPS[sweep]])
            panel.set_xlabel(LABELS[sweep])
            panel.set_title(label, fontsize="medium")
            panel.grid(alpha=0.3)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(MODES))
        fixed = ", ".join(f"{value:,} {LABELS[name]}" for name, value in BASE.items() if name != sweep)
        figure.suptitle(f"Cost against {LABELS[sweep]}: {fixed}, no model latency")
        file = folder / f"{sweep}.png"
        figure.savefig(file, dpi=110)
        pyplot.close(figure)
        files.append(file)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "plots", help="where the pictures go")
    parser.add_argument("--mode", action="append", choices=MODES, help="only these modes")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the chats at each point")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--record", type=Path, metavar="FILE", help="write the figures to FILE")
    either.add_argument("--from", type=Path, metavar="FILE", dest="recorded", help="draw these figures")
    given = parser.parse_args()
    points = (
        json.loads(given.recorded.read_text())["points"]
        if given.recorded
        else collect(given.mode or MODES, given.scale)
    )
    if given.record:
        given.record.write_text(json.dumps({"machine": machine(), "points": points}, indent=1))
    for file in draw(points, given.folder):
        print(file)


if __name__ == "__main__":
    main()
