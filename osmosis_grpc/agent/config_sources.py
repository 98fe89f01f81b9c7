"""Gives workflows and graders the values of the TOML file, the environment and the command line."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from osmosis_grpc.agent.workflow_toml import WorkflowToml

TBase = TypeVar("TBase", bound=BaseConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """KEY=VALUE texts from one source. Later ones replace earlier ones."""

    values: tuple[str, ...] = ()
    place: str = ""
    """The option or the variable that has them, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSources:
    """Where the configurations of workflows and graders get values from, besides the code."""

    toml: WorkflowToml = field(default_factory=WorkflowToml)
    workflow: tuple[str, ...] = ()
    """KEY=VALUE texts of the command line. Later ones replace earlier ones."""
    grader: tuple[str, ...] = ()
    """KEY=VALUE texts of the command line for the grader's configuration."""
    grader_class: str = ""
    """MODULE:CLASS of a grader that replaces the grader in the workflow's file."""
    workflow_variable: Texts = Texts()
    """The texts of the environment for the workflow. Those of the command line replace them."""
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
