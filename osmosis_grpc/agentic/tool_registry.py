"""The tools that a configuration can name, with their options."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from osmosis_grpc.agentic.duck_tools import as_tool
from osmosis_grpc.errors import InvalidArgument

_makers: dict[str, Callable[..., Any]] = {}


def register_tool(name: str, make: Callable[..., Any]) -> None:
    """Register a tool: make(**options) returns it, see as_tool(). Raises ValueError for a registered name."""
    if name in _makers:
        raise ValueError(f"name: the tool {name!r} is registered already")
    _makers[name] = make


def list_tools() -> list[str]:
    """Return the names of the tools that a configuration can name, sorted."""
    return sorted(_makers)


def make_tools(config: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """Make the tools of a configuration: name to options.

    Raises InvalidArgument, which names the tool or the option.
    """
    return {name: _make(name, options) for name, options in (config or {}).items()}


def _make(name: str, options: Mapping[str, Any]) -> Any:
    field = f"tools_config.{name}"
    if name not in _makers:
        raise InvalidArgument(field, f"is no tool; the tools are {', '.join(list_tools()) or 'none'}")
    make = _makers[name]
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise InvalidArgument(f"{field}.{option}", f"is no option; the tool has the options {listed}")
    try:
        return as_tool(make(**options), name)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(field, str(error)) from None
