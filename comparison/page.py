"""Write the tables of docs/comparison.md and README.md from record.json; with --check, only compare them."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from comparison.cases import CASES, NATIVE_HAS_NO
from comparison.cost import MEASURES, OURS
from comparison.findings import FINDINGS
from comparison.known import BY_NAME, ENGINE_ALONE, HERE, LEFT_OUT, SYSTEMS, System
from comparison.models import NAMES
from comparison.run import load

PAGE = HERE.parent / "docs" / "comparison.md"
README = HERE.parent / "README.md"
MARKS = {"exact": "✓", "split": "s", "twice": "2", "left out": "o", "no logprobs": "n"}
MARKS |= {"failed": "F", "lost": "L", "wrong": "W"}
Record = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def recorded(record: Record) -> list[System]:
    """Return the systems that the record has."""
    return [system for system in SYSTEMS if system.name in record.get("cells", {})]


def cells_of(record: Record, system: System, case: str) -> list[str]:
    """Return the verdicts on a case, one for each model; none for a case that a system cannot have."""
    if case in NATIVE_HAS_NO and not system.streams:
        return []
    models = record["cells"][system.name]
    return [models[model][case]["verdict"] for model in NAMES if case in models.get(model, {})]


def exact(record: Record, system: System) -> str:
    """Return how many cells of a system are exact, of how many."""
    verdicts = [verdict for case in CASES for verdict in cells_of(record, system, case)]
    return f"{verdicts.count('exact')} of {len(verdicts)}"


def matrix(record: Record) -> str:
    """Return the verdicts: a row for each case, a column for each system, a mark for each model."""
    systems = recorded(record)

    def row(case: str) -> list[str]:
        marks = ("".join(MARKS[verdict] for verdict in cells_of(record, system, case)) for system in systems)
        return [f"`{case}`", *(mark or "-" for mark in marks)]

    total = ["**exact**", *(f"**{exact(record, system)}**" for system in systems)]
    return table(["case", *(system.title for system in systems)], [*map(row, CASES), total])


def cases(_: Record) -> str:
    """Return what each case does, and how many rows are right."""
    rows = ((f"`{name}`", case.why, "-".join(map(str, sorted(set(case.rows))))) for name, case in CASES.items())
    return table(["case", "what happens", "rows"], rows)


def systems(record: Record) -> str:
    """Return the systems, their versions, their way, what they record, and what they do better."""
    rows = ([s.title, s.versions or "this tree", s.path, s.records, s.better or "-"] for s in recorded(record))
    return table(
        ["system", "versions", "way of a chat", "what it records", "what it does better than osmosis_grpc"], rows
    )


def findings(record: Record) -> str:
    """Return why cells are not exact."""
    lines = []
    for system in recorded(record):
        for found in FINDINGS.get(system.name, ()):
            names = ", ".join(f"`{case}`" if case in CASES else case for case in found.cases)
            models = f" with {', '.join(found.models)}" if found.models else ""
            lines.append(f"- **{system.title}**, {names}{models}: {found.says}\n")
    return "".join(lines)


def left_out(_: Record) -> str:
    """Return what is not compared."""
    return table(["system", "why it is not compared"], LEFT_OUT.items())


def number(value: float | None) -> str:
    """Return a figure with about three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"


def cost(record: Record) -> str:
    """Return the medians of all rounds, and what could not be measured."""
    measured = record.get("cost", {})
    medians = measured.get("medians", {})
    unknown = "is not in the table, and whose fault that is was not found out"
    said = "".join(f"\n{BY_NAME[n].title} {unknown}: {why}.\n" for n, why in measured.get("failed", {}).items())
    order = [system for system in (*SYSTEMS, ENGINE_ALONE) if system.name in medians]
    return (
        table(
            ["", *MEASURES.values()],
            ([system.title, *(number(medians[system.name].get(key)) for key in MEASURES)] for system in order),
        )
        + f"\nMedians of {measured.get('rounds', 0)} rounds.\n"
        + said
    )


def ratios(record: Record) -> str:
    """Return our share of the best peer, as the median of the rounds."""
    rows = (
        [BY_NAME[name].title, *(f"{shares[key]:.2f}" if key in shares else "-" for key in ("cpu", "added", "memory"))]
        for name, shares in record.get("cost", {}).get("ratios", {}).items()
    )
    return table(["against the best peer of each figure", "CPU of a rollout", "added time", "memory"], rows)


def short(record: Record) -> str:
    """Return the table of the README."""
    medians = record.get("cost", {}).get("medians", {})
    keys = ("cpu", "added", "memory")
    rows = (
        [s.title if s.name not in OURS else f"**{s.title}**", exact(record, s)]
        + [number(medians.get(s.name, {}).get(key)) for key in keys]
        for s in recorded(record)
    )
    return table(["system", "exact cells", *(MEASURES[key] for key in keys)], rows)


BLOCKS: dict[Path, dict[str, Callable[[Record], str]]] = {
    PAGE: {f.__name__: f for f in (short, matrix, cases, findings, cost, ratios, systems, left_out)},
    README: {"short": short},
}


def filled(text: str, record: Record, blocks: dict[str, Callable[[Record], str]]) -> str:
    """Return a page with its blocks written anew."""
    for name, write in blocks.items():
        begin, end = f"<!-- begin {name}: python -m comparison.page -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{write(record)}{end}{after}"
    return text


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    record, old = load(), []
    for path, blocks in BLOCKS.items():
        text = path.read_text()
        new = filled(text, record, blocks)
        if new == text:
            continue
        old.append(path.name)
        if not options.check:
            path.write_text(new)
    if old and options.check:
        print(f"{', '.join(old)}: not what the record says: run python -m comparison.page", file=sys.stderr)
    return int(bool(old and options.check))


if __name__ == "__main__":
    sys.exit(main())
