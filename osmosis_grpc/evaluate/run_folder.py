"""The folder of a run: a journal with every event, `run.json` about the whole run, and `results.jsonl` with the rows.

The journal is the one of a server, so commands with --state-dir read it.
"""

import json
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from osmosis_grpc.evaluate.errors import RunError
from osmosis_grpc.storage.journal.schema import FILE

RUNS = Path(".osmosis/runs")
"""The folder of all runs whose folder has no name of its own."""
SCHEMA_VERSION = 1
"""The version of run.json, of the rows in results.jsonl, and of the output of the commands."""
NEWEST = "last"
"""The name of the newest run below RUNS that asked a model."""
_RUN, _RESULTS = "run.json", "results.jsonl"


class RunFolder:
    """The folder of one run. Rollout ids are `test-RUN-ROW`, so they differ between runs."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        """The content of run.json."""

    @classmethod
    def create(cls, path: Path | None, about: dict[str, Any]) -> "RunFolder":
        """Make the folder of a new run. Raises RunError if it cannot be made, or if it has a run already."""
        now, run_id = datetime.now(UTC), secrets.token_hex(3)
        path = path or RUNS / f"{now:%Y%m%d-%H%M%S}-{run_id}"
        if (path / _RUN).exists() or (path / FILE).exists():
            raise RunError(f"{path} has a run already; name another folder with --save-dir")
        head = {"schema_version": SCHEMA_VERSION, "id": run_id, "state": "running", "started": now.isoformat()}
        folder = cls(path, head | about)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.save()
            (path / _RESULTS).touch(mode=0o600)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror}; name another folder with --save-dir") from None
        return folder

    @classmethod
    def open(cls, name: str) -> "RunFolder":
        """Open the folder of an earlier run. `last` is the newest below RUNS that asked a model. Raises RunError."""
        path = Path(name)
        if name == NEWEST and not path.exists():
            for path in sorted((found.parent for found in RUNS.glob(f"*/{FILE}")), reverse=True):
                found = cls.open(str(path))
                if not found.about.get("replay"):
                    return found
            raise RunError(f"there is no run in {RUNS}")
        try:
            about = json.loads((path / _RUN).read_text())
            version = about["schema_version"]
            if version != SCHEMA_VERSION:
                raise RunError(f"{path / _RUN} has version {version}, and this program reads version {SCHEMA_VERSION}")
            return cls(path, about)
        except FileNotFoundError:
            raise RunError(f"{path} is not the folder of a run: it has no {_RUN}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path / _RUN} cannot be read: {error}") from None

    def rollout_id(self, row: int | str) -> str:
        """Return the id of the rollout of a row."""
        return f"test-{self.about['id']}-{row}"

    def save(self) -> None:
        """Write run.json, so that a crash leaves the old file or the new one."""
        temporary = self.path / f"{_RUN}.new"
        temporary.write_text(json.dumps(self.about, indent=2, ensure_ascii=False) + "\n")
        os.replace(temporary, self.path / _RUN)

    def add(self, result: dict[str, Any]) -> None:
        """Append the result of a row."""
        with (self.path / _RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield the results in the order of their ends."""
        with (self.path / _RESULTS).open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def end(self, state: str, summary: dict[str, Any]) -> None:
        """Write the end of the run: "finished" or "interrupted"."""
        self.about |= {"state": state, "ended": datetime.now(UTC).isoformat(), "summary": summary}
        self.save()
