"""Workflows and the configurations of workflows and graders, as pydantic models. Imports pydantic."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeVar


class ConcurrencyConfig(BaseModel):
    """How many rollouts of one workflow run at once."""

    max_concurrent: int | None = Field(default=None, ge=1)
    """At least 1. None means no limit besides the server's."""


class BaseConfig(BaseModel):
    """The fields that every configuration has. Fields that a class does not name are kept, and assignments are checked.

    A subclass adds fields. It can set `extra="forbid"` in its model_config, to refuse unknown fields.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    name: str
    """The name of the workflow or the grader. Trainers call a workflow by this name: 1 to 256 characters."""
    description: str | None = None
    """A text for people."""


class AgentWorkflowConfig(BaseConfig):
    """The configuration of a workflow."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """How many rollouts of the workflow run at once."""


class GraderConfig(BaseConfig):
    """The configuration of a grader. It is not an AgentWorkflowConfig."""

    concurrency: ConcurrencyConfig = Field(default_factory=ConcurrencyConfig)
    """How many rollouts are graded at once."""


TBase = TypeVar("TBase", bound=BaseConfig)

ALIKE = 0.82
"""An unknown key that is at least this similar to a known one is refused. 1.0 means equal."""


class ConfigValueError(ValueError):
    """Values do not fit a configuration. `problems` has the name of each wrong value, and what is wrong with it."""

    def __init__(self, source: str, problems: Mapping[str, str]) -> None:
        super().__init__(f"{source}: " + "; ".join(f"{name}: {text}" for name, text in problems.items()))
        self.problems = dict(problems)


def overlaid(config: TBase, values: Mapping[str, Any], source: str) -> TBase:
    """Return a copy of a configuration with other values of some fields. The other fields keep their objects.

    Raises ConfigValueError, which names `source`, also for a key that is not known and looks like a known one.
    """
    fields = type(config).model_fields
    _check_keys(type(config), values, {*fields, *(config.model_extra or {})}, source)
    present = {name: getattr(config, name) for name in fields} | (config.model_extra or {})
    return _built(type(config), present | dict(values), source)


def built(cls: type[TBase], values: Mapping[str, Any], source: str) -> TBase:
    """Return a new configuration. The errors are those of overlaid()."""
    _check_keys(cls, values, cls.model_fields, source)
    return _built(cls, values, source)


def _built(cls: type[TBase], values: Mapping[str, Any], source: str) -> TBase:
    aliases = {name: field.alias for name, field in cls.model_fields.items() if field.alias}
    try:
        return cls.model_validate({aliases.get(name, name): value for name, value in values.items()})
    except ValidationError as error:
        found = {".".join(map(str, row["loc"])) or cls.__name__: row["msg"] for row in error.errors()}
        raise ConfigValueError(source, found) from None


def misspelt(cls: type[BaseConfig], keys: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Return each key that is not known and looks like a known one, with the problem. Other unknown keys are not."""
    names = {*known, *(field.alias for field in cls.model_fields.values() if field.alias)}
    near = {key: difflib.get_close_matches(key, names, 1, ALIKE) for key in keys if key not in names}
    return {
        key: f"{cls.__name__} has no field of this name; is {found[0]} meant?" for key, found in near.items() if found
    }


def _check_keys(cls: type[BaseConfig], values: Mapping[str, Any], known: Iterable[str], source: str) -> None:
    problems = misspelt(cls, values, known)
    if problems:
        raise ConfigValueError(source, problems)


def config_class(cls: type, generic: type) -> type[BaseConfig] | None:
    """Return MyConfig for a subclass of `generic[MyConfig]`; None if the class names no configuration."""
    for each in cls.__mro__:
        for base in getattr(each, "__orig_bases__", ()):
            named = get_args(base)
            if get_origin(base) is generic and named and isinstance(named[0], type):
                return named[0] if issubclass(named[0], BaseConfig) else None
    return None


TConfig = TypeVar("TConfig", bound=AgentWorkflowConfig, default=AgentWorkflowConfig)


class WithArtifacts:
    """The base class of contexts with a folder for files."""

    _artifacts: Path | None = None

    @property
    def artifacts_dir(self) -> Path | None:
        """A folder for files of the rollout, which its first use makes. They are deleted with the rollout's record.

        None if the server has no state folder.
        """
        if self._artifacts is not None:
            self._artifacts.mkdir(parents=True, exist_ok=True)
        return self._artifacts


class AgentWorkflowContext(WithArtifacts, Generic[TConfig]):
    """The input of one run of a workflow.

    Args:
        prompt: The messages to start from. The list belongs to the run, which may change it.
        config: The configuration of this run; None if the workflow has none.
        metadata: Any data from the trainer. The grader gets the same dict.
        artifacts_dir: A folder for files of the rollout, or None.
    """

    def __init__(
        self,
        prompt: Sequence[Any],
        config: TConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        artifacts_dir: Path | None = None,
    ) -> None:
        self.prompt: list[dict[str, Any]] = list(prompt)
        self.config = config
        self.metadata = metadata if isinstance(metadata, dict) else dict(metadata or {})
        self._artifacts = artifacts_dir


class AgentWorkflow(ABC, Generic[TConfig]):
    """An agent that runs one prompt. Each rollout has its own instance.

    The model calls of run() go over get_rollout_context(), for example those of OsmosisStrandsAgent. Each conversation
    of run() is a sample, which a Grader rewards.
    """

    replayable: ClassVar[bool] = False
    """Whether run sends the same chats again if it gets the same replies. See RolloutAgentLoop.replayable."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config
        """The configuration of this rollout. It is the object in `ctx.config`."""

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[TConfig]) -> Any:
        """Run the agent on `ctx.prompt`. An exception fails the rollout.

        An AgentWorkflowOutput or a list of messages replaces the messages that the grader gets of the only sample.
        Another returned value is ignored.
        """
