"""Run cells of the comparison: `python -m comparison.run --system agent_lightning --case edited`.

Prints a line a cell. A whole row of the matrix is written into record.json. Run one process at a time: two would write
over each other's rows.
"""

import argparse
import json
import platform
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison.cases import CASES, NATIVE_HAS_NO
from comparison.judge import Verdict, judged
from comparison.known import BY_NAME, HERE, SYSTEMS, System
from comparison.models import NAMES
from comparison.stage import opened, stage

RECORD = HERE / "record.json"
LIMIT, CANCELLED = 60.0, 5.0


def cells(
    system: System, model: str, names: Iterable[str], python: Path | None = None, keep: Path | None = None
) -> Iterator[tuple[str, Verdict]]:
    """Run cases in a system with a model; yield the verdict on each. A first rollout is not judged: the cold start."""
    with stage(model, keep) as on, opened(system, on, python) as running:
        running.order(do="rollout", case="plain", key=f"{system.name}-cold-{uuid.uuid4().hex[:6]}", limit=LIMIT)
        for case in names:
            if case in NATIVE_HAS_NO and system.name == "osmosis_native":
                continue
            key = f"{system.name}-{case}-{uuid.uuid4().hex[:6]}"
            limit = CANCELLED if case == "cancel" else LIMIT
            answer = running.order(do="rollout", case=case, key=key, limit=limit)
            with (on.folder / "rows.jsonl").open("a") as log:
                log.write(json.dumps({"id": key, **answer}) + "\n")
            yield case, judged(case, key, on.logs, answer, on.model)


def load() -> dict[str, Any]:
    """Return the record."""
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record


def save(record: dict[str, Any]) -> None:
    """Write the record."""
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def short(verdict: Verdict) -> dict[str, Any]:
    """Return what the record keeps: the fields that say something."""
    return {name: value for name, value in asdict(verdict).items() if value or name == "rows"}


def main() -> int:
    """Run what the options choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=sorted(BY_NAME), help="all by default")
    parser.add_argument("--case", choices=list(CASES), help="all by default; one case is not recorded")
    parser.add_argument("--model", choices=NAMES, help="all that the system takes by default")
    parser.add_argument("--keep", type=Path, help="a folder for the logs and the rows, one folder a model in it")
    options = parser.parse_args()
    for system in [BY_NAME[options.system]] if options.system else SYSTEMS:
        if not system.python.exists():
            print(f"{system.name}: not installed: run python -m comparison.environments {system.name}")
            continue
        for model in [options.model] if options.model else system.models:
            row = {}
            keep = options.keep and options.keep / f"{system.name}-{model}"
            for case, verdict in cells(system, model, [options.case] if options.case else CASES, keep=keep):
                row[case] = short(verdict)
                print(f"{system.name:17} {model:9} {case:12}", json.dumps(row[case]), flush=True)
            if not options.case:
                record = load()
                record.setdefault("cells", {}).setdefault(system.name, {})[model] = row
                record.setdefault("versions", {})[system.name] = system.versions
                record["python"] = platform.python_version()
                save(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
