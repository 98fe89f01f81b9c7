"""Finds agent loops by "module:attribute"."""

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from osmosis_grpc.agent.loop import RolloutAgentLoop


class LoadError(ValueError):
    """A specification does not lead to an agent loop; the text says where it went wrong."""


def load_object(spec: str) -> Any:
    """What "module:attribute" names. The working directory is on the path.

    Raises LoadError; an exception of the module's own passes as it is.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise LoadError(f"{spec!r} is not MODULE:ATTRIBUTE, for example server:agent_loop")
    if module_name.endswith(".py") or "/" in module_name:
        name = os.path.basename(module_name).removesuffix(".py")
        raise LoadError(f"{spec!r} names a file; name the module: {name}:{attribute}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"there is no module {error.name!r} in {os.getcwd()} or on the path") from error
        raise
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise LoadError(f"{module_name} has no attribute {part!r}; it has: {_suggest(found)}")
        found = getattr(found, part)
    return found


def as_agent_loops(found: Any, spec: str) -> Sequence[RolloutAgentLoop]:
    """An agent loop, a class of one, or a list of them, as instances. Raises LoadError."""
    items = list(found) if isinstance(found, list | tuple) else [found]
    made = []
    for item in items:
        if isinstance(item, type) and issubclass(item, RolloutAgentLoop):
            item = item()
        if not isinstance(item, RolloutAgentLoop):
            raise LoadError(f"{spec} is a {type(item).__name__}, not a RolloutAgentLoop")
        made.append(item)
    return made


def load_agent_loops(specs: Iterable[str]) -> list[RolloutAgentLoop]:
    """The agent loops of several specifications, their names unique. Raises LoadError."""
    loops = [loop for spec in specs for loop in as_agent_loops(load_object(spec), spec)]
    names = [loop.name for loop in loops]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LoadError(f"two agent loops are named {', '.join(twice)}")
    return loops


def _suggest(module: Any) -> str:
    loops = [name for name, value in vars(module).items() if _is_loop(value, module)]
    return ", ".join(sorted(loops)) or "no agent loop"


def _is_loop(value: Any, module: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutAgentLoop) and value.__module__ == getattr(module, "__name__", None)
    return isinstance(value, RolloutAgentLoop)
