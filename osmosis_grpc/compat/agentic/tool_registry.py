"""The tools that a configuration can name, with their options. Each rollout gets tools and a sandbox of its own."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

from osmosis_grpc.compat.agentic.duck_tools import as_tool
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.tools.library import MAKERS
from osmosis_grpc.tools.sandbox import LocalSandbox, Sandbox

MakeSandbox = Callable[[], Sandbox]

opened_tools: ContextVar[dict[str, Any] | None] = ContextVar("opened_tools", default=None)
"""The tools of the rollout of an author's run_trajectory()."""

_registered: dict[str, Callable[..., Any]] = {}


def register_tool(name: str, make: Callable[..., Any]) -> None:
    """Register a tool: make(**options) returns it, see as_tool(). Raises ValueError for a name that is known.

    A `make` with a parameter `sandbox` gets the sandbox of the rollout.
    """
    if name in list_tools():
        raise ValueError(f"name: the tool {name!r} is registered already")
    _registered[name] = make


def list_tools() -> list[str]:
    """Return the names of the tools that a configuration can name, sorted."""
    return sorted({*MAKERS, *_registered})


class Toolbox:
    """The tools of a configuration: name to options. Raises InvalidArgument, which names the tool or the option."""

    def __init__(self, config: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._config = dict(config or {})
        for name, options in self._config.items():
            _check(name, options)
        self.needs_sandbox = any("sandbox" in _parameters(name) for name in self._config)
        self.tools = self.make(LocalSandbox() if self.needs_sandbox else None)
        """Tools that show their schemas. Those that need a sandbox cannot run."""

    def make(self, sandbox: Sandbox | None) -> dict[str, Any]:
        """Return the tools by name, for one rollout."""
        return {name: _make(name, options, sandbox) for name, options in self._config.items()}

    async def open(self, stack: AsyncExitStack, make_sandbox: MakeSandbox) -> tuple[dict[str, Any], Sandbox | None]:
        """Return the tools of one rollout, and its sandbox, which ends with `stack`. None if no tool needs one.

        Raises SandboxError if the sandbox cannot be started.
        """
        sandbox = await stack.enter_async_context(make_sandbox()) if self.needs_sandbox else None
        return self.make(sandbox), sandbox


def _maker(name: str) -> Callable[..., Any]:
    return _registered[name] if name in _registered else MAKERS[name]


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_maker(name)).parameters


def _check(name: str, options: Mapping[str, Any]) -> None:
    field = f"tools_config.{name}"
    if name not in list_tools():
        raise InvalidArgument(field, f"is no tool; the tools are {', '.join(list_tools())}")
    known = [each for each in _parameters(name) if each != "sandbox"]
    for option in options:
        if option not in known:
            raise InvalidArgument(f"{field}.{option}", f"is no option; the tool has {', '.join(known) or 'none'}")


def _make(name: str, options: Mapping[str, Any], sandbox: Sandbox | None) -> Any:
    needed = {"sandbox": sandbox} if "sandbox" in _parameters(name) else {}
    try:
        return as_tool(_maker(name)(**needed, **options), name)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"tools_config.{name}", str(error)) from None
