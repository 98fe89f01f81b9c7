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

import contextlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.workflow import (
    AgentWorkflow,
    BaseConfig,
    ConfigValueError,
    GraderConfig,
    built,
    config_class,
    overlaid,
)
from osmosis_grpc.agent.workflow_files import FoundWorkflow, grader_config_of

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
    """The tables of a file. An empty one stands for no file."""

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


TBase = TypeVar("TBase", bound=BaseConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """KEY=VALUE texts from one place. A later one wins."""

    values: tuple[str, ...] = ()
    place: str = ""
    """The option or the variable that has them, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSources:
    """Where the configurations of workflows and graders get values from, besides the code."""

    toml: WorkflowToml = field(default_factory=WorkflowToml)
    workflow: tuple[str, ...] = ()
    """KEY=VALUE texts of the command line. A later one wins."""
    grader: tuple[str, ...] = ()
    """KEY=VALUE texts of the command line for the grader's configuration."""
    grader_class: str = ""
    """MODULE:CLASS of a grader that replaces the grader in the workflow's file."""
    workflow_variable: Texts = Texts()
    """The texts of the environment for the workflow. Those of the command line win."""
    grader_variable: Texts = Texts()
    """The texts of the environment for the grader."""
    grader_class_place: str = "--grader"
    """The option or the variable that has `grader_class`, for messages."""

    def for_workflow(self) -> tuple[Texts, ...]:
        """Return the texts for the workflow's configuration, the most important last."""
        return self.workflow_variable, Texts(values=self.workflow, place="--workflow-config")

    def for_grader(self) -> tuple[Texts, ...]:
        """Return the texts for the grader's configuration, the most important last."""
        return self.grader_variable, Texts(values=self.grader, place="--grader-config")


def configured(
    workflows: Sequence[FoundWorkflow], sources: ConfigSources, load: Callable[[str], Any]
) -> list[FoundWorkflow]:
    """Return the workflows with the values of the sources. `load` returns the object of a text MODULE:CLASS.

    Raises ConfigValueError and WorkflowTomlError, which name the file or the option, and ValueError for a text that is
    not KEY=VALUE or names no grader.
    """
    given = [*sources.for_workflow(), *sources.for_grader()]
    given.append(
        Texts(values=(sources.grader_class,) if sources.grader_class else (), place=sources.grader_class_place)
    )
    unused = next((texts.place for texts in given if texts.values), None)
    if not workflows and unused is not None:
        raise ValueError(f"{unused}: there is no workflow to use it for")
    sources.toml.check([found.name for found in workflows])
    return [_configured(found, sources, load, only=len(workflows) == 1) for found in workflows]


def _configured(
    found: FoundWorkflow, sources: ConfigSources, load: Callable[[str], Any], *, only: bool
) -> FoundWorkflow:
    workflow = sources.toml.values("workflow", found.name, only=only)
    grader = sources.toml.values("grader", found.name, only=only)
    named = sources.grader_class or grader.get("module", "")
    place = sources.grader_class_place if sources.grader_class else f"{sources.toml.path}: [grader] module"
    cls = _grader(named, load, place) if named else found.grader
    return replace(
        found,
        grader=cls,
        config=_with(
            found.config,
            config_class(found.workflow, AgentWorkflow),
            (workflow.get("config", {}), f"{sources.toml.path}: [workflow.config]"),
            sources.for_workflow(),
        ),
        grader_config=_with(
            _config_of(cls, found.grader_config) if named else found.grader_config,
            config_class(cls, Grader) if cls is not None else None,
            (grader.get("config", {}), f"{sources.toml.path}: [grader.config]"),
            sources.for_grader(),
        ),
    )


def configured_grader(
    spec: str, texts: Sequence[str], load: Callable[[str], Any]
) -> tuple[type[Grader[Any]], GraderConfig | None]:
    """Return the grader of a text MODULE:CLASS, and the configuration of its module with the values of KEY=VALUE texts.

    `load` and the errors are those of configured(). Raises DiscoveryError if the module has several configurations.
    """
    cls = _grader(spec, load, "--grader")
    config = grader_config_of(sys.modules[cls.__module__])
    given = Texts(values=tuple(texts), place="--grader-config")
    return cls, _with(config, config_class(cls, Grader), ({}, ""), (given,))


def parsed(texts: Iterable[str], flag: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of KEY=VALUE texts, and the texts. A VALUE that is JSON is read as JSON.

    Blanks around KEY are dropped, and blanks before VALUE if there is one before the sign, as in "a = 3".

    Raises ValueError naming the flag.
    """
    values: dict[str, Any] = {}
    read: dict[str, str] = {}
    for text in texts:
        given, sign, value = text.partition("=")
        key = given.strip()
        value = value.lstrip() if given != given.rstrip() else value
        if not sign or not key:
            raise ValueError(f"{flag}: {text!r} is not KEY=VALUE")
        values[key] = read[key] = value
        with contextlib.suppress(ValueError):
            values[key] = json.loads(value)
    return values, read


def _config_of(cls: type[Grader[Any]] | None, of_file: GraderConfig | None) -> GraderConfig | None:
    """Return the configuration of a grader that replaces the one in the workflow's file.

    It is the instance in the grader's module; without one, the instance in the workflow's file, if its class fits.
    """
    own = None if cls is None else grader_config_of(sys.modules[cls.__module__])
    kind = None if cls is None else config_class(cls, Grader)
    return own or (of_file if kind is None or isinstance(of_file, kind) else None)


def _grader(spec: str, load: Callable[[str], Any], place: str) -> type[Grader[Any]]:
    if ":" not in spec:
        raise ValueError(f"{place}: {spec!r} is not MODULE:CLASS, for example graders:Strict")
    found = load(spec)
    if not isinstance(found, type) or not issubclass(found, Grader):
        what = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
        raise ValueError(f"{spec} is not a subclass of Grader: it is {what}")
    return found


def _with(
    config: Any, cls: type[BaseConfig] | None, file: tuple[Mapping[str, Any], str], given: Sequence[Texts]
) -> Any:
    """Return a configuration with the values of a file and of texts. The last texts win.

    Without an instance, make one of the class `cls`. A text that was read as JSON and does not fit stays a text.
    """
    values, texts = dict(file[0]), dict[str, str]()
    places = dict.fromkeys(values, file[1])
    for each in given:
        own, read = parsed(each.values, each.place)
        values, texts = values | own, {**texts, **read}
        places |= dict.fromkeys(own, each.place)
    if not values:
        return config
    source = ", ".join(dict.fromkeys(places.values()))
    if config is None and cls is None:
        raise ValueError(f"{source}: the code has no configuration for the values of {', '.join(values)}")

    def made(values: Mapping[str, Any]) -> BaseConfig:
        return overlaid(config, values, source) if cls is None or config is not None else built(cls, values, source)

    try:
        try:
            return made(values)
        except ConfigValueError as error:
            unread = {name: texts[name] for name in error.problems if name in texts and texts[name] != values[name]}
            if not unread:
                raise
            return made({**values, **unread})
    except ConfigValueError as error:
        named = {places.get(name.partition(".")[0], source) for name in error.problems}
        raise ConfigValueError(", ".join(sorted(named)), error.problems) from None
