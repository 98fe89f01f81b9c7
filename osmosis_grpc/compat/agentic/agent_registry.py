"""The agent types by name: built-in ones, registered ones, and those of installed packages."""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from osmosis_grpc.compat.agentic.base_agent import BaseAgent, agent_runnable
from osmosis_grpc.compat.agentic.built_in_agent import ReActAgent, ToolAgent
from osmosis_grpc.compat.agentic.coding_agent import CodingAgent
from osmosis_grpc.protocol.errors import InvalidArgument

GROUP = "osmosis_grpc.agents"
"""The group of entry points with which packages add agent types. An entry's name is the type, its value the class."""

C = TypeVar("C", bound=type)
_BUILT_IN: dict[str, type[BaseAgent]] = {"react": ReActAgent, "tool": ToolAgent, "coding": CodingAgent}
_registered: dict[str, type] = {}
react, tool, coding = (agent_runnable(cls()) for cls in _BUILT_IN.values())
"""The built-in agents as Runnables, for `serve -m`."""


def register_agent(name: str) -> Callable[[C], C]:
    """Return a class decorator that registers an agent type. Raises ValueError if the name is already registered."""
    if not name.strip():
        raise ValueError(f"name: {name!r} is not the name of an agent type")

    def register(cls: C) -> C:
        if name in _registered or name in _BUILT_IN:
            known = get_agent_class(name).__name__
            raise ValueError(f"name: the agent type {name!r} is registered already, as {known}")
        _registered[name] = cls
        return cls

    return register


def get_agent_class(name: str) -> type:
    """Return the class of an agent type. Raises InvalidArgument with a list of the types if there is none."""
    known = {**_BUILT_IN, **_registered}
    if name in known:
        return known[name]
    for found in entry_points(group=GROUP, name=name):
        cls: type = found.load()
        return cls
    raise InvalidArgument("agent_type", f"{name!r} is not an agent type; the types are {', '.join(list_agents())}")


def list_agents() -> list[str]:
    """Return the names of the agent types, sorted."""
    return sorted({*_BUILT_IN, *_registered, *(found.name for found in entry_points(group=GROUP))})


def clear_registry() -> None:
    """Remove the types of register_agent(). The types of this package and of installed packages stay."""
    _registered.clear()


def make_agent(name: str, of_the_config: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Make an agent of a type.

    `of_the_config` has the arguments from fields of the configuration, and `options` those from its agent_options.
    Raises InvalidArgument for an unknown type, an option that the agent lacks, or an option that is also a field.
    """
    cls = get_agent_class(name)
    if not issubclass(cls, BaseAgent):
        raise InvalidArgument("agent_type", f"{name!r}: {cls.__name__} is not a BaseAgent")
    parameters = inspect.signature(cls).parameters.values()
    known = {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for option in options:
        if option in of_the_config:
            raise InvalidArgument(f"agent_options.{option}", f"is a field of the configuration; set {option} there")
        if option not in known and not takes_any:
            listed = ", ".join(sorted(known - of_the_config.keys())) or "none"
            raise InvalidArgument(f"agent_options.{option}", f"the agent {name} has the options {listed}")
    missing = [field for field in of_the_config if field not in known and not takes_any]
    if missing:
        why = f"{cls.__name__}() does not take {', '.join(missing)}; add **kwargs, and pass them to super().__init__()"
        raise InvalidArgument("agent_type", f"{name!r}: {why}")
    try:
        return cls(**of_the_config, **options)
    except TypeError as error:
        raise InvalidArgument("agent_options", f"the agent {name} cannot be made: {error}") from error
