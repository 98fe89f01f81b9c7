"""The agent types by name: those of this package, those that code registers, and those of installed packages."""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from osmosis_grpc.errors import InvalidArgument

GROUP = "osmosis_grpc.agents"
"""The group of entry points of other packages: the name is the agent type, the value is the class."""

C = TypeVar("C", bound=type)
_registered: dict[str, type] = {}


def register_agent(name: str) -> Callable[[C], C]:
    """Return a class decorator that registers an agent type. Raises ValueError for a name that is registered."""
    if not name.strip():
        raise ValueError(f"name: {name!r} is not the name of an agent type")

    def register(cls: C) -> C:
        if name in _registered or name in _built_in():
            raise ValueError(
                f"name: the agent type {name!r} is registered already, as {get_agent_class(name).__name__}"
            )
        _registered[name] = cls
        return cls

    return register


def get_agent_class(name: str) -> type:
    """Return the class of an agent type. Raises InvalidArgument, which lists the agent types."""
    known = {**_built_in(), **_registered}
    if name in known:
        return known[name]
    for found in entry_points(group=GROUP, name=name):
        cls: type = found.load()
        return cls
    raise InvalidArgument("agent_type", f"{name!r} is no agent type; the types are {', '.join(list_agents())}")


def list_agents() -> list[str]:
    """Return the names of the agent types, sorted."""
    return sorted({*_built_in(), *_registered, *(found.name for found in entry_points(group=GROUP))})


def clear_registry() -> None:
    """Forget the agent types that code has registered. Those of this package and of installed packages stay."""
    _registered.clear()


def make_agent(name: str, options: Mapping[str, Any]) -> Any:
    """Make an agent of a type. Raises InvalidArgument for an unknown type, and for an option that it does not have."""
    cls = get_agent_class(name)
    known = inspect.signature(cls).parameters
    for option in options:
        if option not in known:
            listed = ", ".join(key for key in known if key not in _OF_THE_CONFIG)
            raise InvalidArgument(f"agent_options.{option}", f"the agent {name} has the options {listed or 'none'}")
    return cls(**options)


_OF_THE_CONFIG = ("max_steps", "max_tokens_per_step", "temperature", "tools_config", "args", "kwargs")


def _built_in() -> dict[str, type]:
    from osmosis_grpc.agentic.coding_agent import CodingAgent
    from osmosis_grpc.agentic.react_agent import ReActAgent
    from osmosis_grpc.agentic.tool_agent import ToolAgent

    return {"react": ReActAgent, "tool": ToolAgent, "coding": CodingAgent}
