"""Puts values from a file, a command line or a request into the configuration of a workflow or a grader."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from osmosis_grpc.agent.workflow_config import BaseConfig

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
