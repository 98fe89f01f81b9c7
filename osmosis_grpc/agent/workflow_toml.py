"""Reads the TOML file with the values of workflows, graders and the server.

    [server]                        # the settings of `serve`, under the names of docs/settings.md
    max_concurrent_rollouts = 64

    [client]                        # its calls over HTTP
    timeout_seconds = 60

    [workflow.config]               # fields of the workflow's configuration
    max_iterations = 20

    [grader]
    module = "graders:Strict"       # instead of the grader in the workflow's file

    [grader.config]                 # fields of the grader's configuration
    threshold = 0.9

If the server has several workflows, the tables are [workflow.NAME.config], [grader.NAME] and [grader.NAME.config].
NAME is the name of the workflow.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLES = ("workflow", "grader", "server", "client")
KEYS = {"workflow": ("config",), "grader": ("config", "module")}
"""The keys of a table that names no workflow."""

INSTEAD = {
    "serve": 'name the workflow with -m FILE, or with module = ["FILE"] in [server]',
    "grader_config": "write [grader.config]",
    "debug": "the settings of serve are in [server], with the names of docs/settings.md",
    "eval": "give these values to the command eval as options",
}
"""What to write instead of a table of the Osmosis SDK's files."""


class WorkflowTomlError(ValueError):
    """The file cannot be read, or has a table or a key that is not known. The text names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowToml:
    """The tables of a file; empty without a file."""

    path: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    _tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`workflow` and `grader`."""

    @classmethod
    def read(cls, path: Path | str) -> "WorkflowToml":
        """Return the tables of a file. Raises WorkflowTomlError."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise WorkflowTomlError(f"{path} cannot be read: {why}") from None
        for name, value in data.items():
            if name not in TABLES:
                known, instead = ", ".join(f"[{table}]" for table in TABLES), INSTEAD.get(name)
                hint = f"; {instead}" if instead else ""
                raise WorkflowTomlError(f"{path}: the table [{name}] is unknown; the tables are {known}{hint}")
            if not isinstance(value, dict):
                raise WorkflowTomlError(f"{path}: {name} is not a table")
        return cls(path=str(path), server=data.get("server", {}), client=data.get("client", {}), _tables=data)

    def check(self, names: Sequence[str]) -> None:
        """Raise WorkflowTomlError for a key that is not known. `names` are the workflows of the server."""
        for table, keys in KEYS.items():
            rows = self._tables.get(table, {})
            if rows and not names:
                self._fail(f"[{table}]: there is no workflow to use it for")
            for key, value in rows.items():
                if key in keys and len(names) == 1:
                    self._check_value(f"{table}.{key}", key, value)
                elif key in keys and key not in names:
                    example = f"[{table}.{names[0]}.{key}]"
                    self._fail(f"there are {len(names)} workflows, so {table}.{key} needs a name: write {example}")
                elif key not in names and isinstance(value, dict):
                    self._fail(f"[{table}.{key}]: there is no workflow {key}; use {' or '.join(names)}")
                elif key not in names:
                    value_of = "a value of the configuration belongs into"
                    known = f"the keys are {', '.join(keys)}, and NAME.config"
                    self._fail(f"the key {table}.{key} is unknown; {known}; {value_of} [{table}.config]")
                else:
                    self._check_named(table, key, value)

    def _check_named(self, table: str, name: str, value: Any) -> None:
        if not isinstance(value, dict):
            self._fail(f"{table}.{name} is not a table")
        for key, inner in value.items():
            if key not in KEYS[table]:
                self._fail(f"the key {table}.{name}.{key} is unknown; the keys are {', '.join(KEYS[table])}")
            self._check_value(f"{table}.{name}.{key}", key, inner)

    def _check_value(self, path: str, key: str, value: Any) -> None:
        if key == "config" and not isinstance(value, dict):
            self._fail(f"{path} is not a table")
        if key == "module" and not isinstance(value, str):
            self._fail(f"{path} is not a text MODULE:CLASS")

    def _fail(self, problem: str) -> None:
        raise WorkflowTomlError(f"{self.path}: {problem}")

    def values(self, table: str, name: str, *, only: bool) -> Mapping[str, Any]:
        """Return the row of a workflow. With `only`, a row without a name belongs to it, too. Call check() first."""
        rows = self._tables.get(table, {})
        row = {key: rows[key] for key in KEYS[table] if key in rows} if only else {}
        return row | dict(rows.get(name, {}) if name not in KEYS[table] else {})
