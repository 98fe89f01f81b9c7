"""Puts values from a file, a command line or a request into the configuration of a workflow or a grader."""

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from osmosis_grpc.agent.workflow_config import BaseConfig

TBase = TypeVar("TBase", bound=BaseConfig)


class ConfigValueError(ValueError):
    """Values do not fit a configuration. `problems` has the name of each wrong value, and what is wrong with it."""

    def __init__(self, source: str, problems: Mapping[str, str]) -> None:
        super().__init__(f"{source}: " + "; ".join(f"{name}: {text}" for name, text in problems.items()))
        self.problems = dict(problems)


def overlaid(config: TBase, values: Mapping[str, Any], source: str) -> TBase:
    """Return a copy of a configuration with other values of some fields. The other fields keep their objects.

    Raises ConfigValueError, which names `source`.
    """
    fields = type(config).model_fields
    present = {name: getattr(config, name) for name in fields} | (config.model_extra or {})
    return built(type(config), present | dict(values), source)


def built(cls: type[TBase], values: Mapping[str, Any], source: str) -> TBase:
    """Return a new configuration. Raises ConfigValueError, which names `source`."""
    aliases = {name: field.alias for name, field in cls.model_fields.items() if field.alias}
    try:
        return cls.model_validate({aliases.get(name, name): value for name, value in values.items()})
    except ValidationError as error:
        found = {".".join(map(str, row["loc"])) or cls.__name__: row["msg"] for row in error.errors()}
        raise ConfigValueError(source, found) from None


def config_class(cls: type, generic: type) -> type[BaseConfig] | None:
    """Return MyConfig for a subclass of `generic[MyConfig]`; None if the class names no configuration."""
    for each in cls.__mro__:
        for base in getattr(each, "__orig_bases__", ()):
            named = get_args(base)
            if get_origin(base) is generic and named and isinstance(named[0], type):
                return named[0] if issubclass(named[0], BaseConfig) else None
    return None
