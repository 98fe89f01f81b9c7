"""Makes tools of what authors have: `@tool` functions, objects with a method execute, and plain functions."""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument, ToolExecutionError
from osmosis_grpc.protocol.types import ToolDict
from osmosis_grpc.tools import Tool
from osmosis_grpc.tools.base_tool import BaseTool, ToolsOfTrajectory


def as_tool(given: Any, name: str = "", field: str = "") -> Any:
    """Return a tool with `name`, `openai_schema()` and `run(arguments, context)`. `field` is its place, for errors.

    `given` is what `@tool` makes, a BaseTool or its class, an object with a method execute(), sync or async, or a
    function. Raises InvalidArgument.
    """
    if isinstance(given, BaseTool) or (isinstance(given, type) and issubclass(given, BaseTool)):
        return StatefulTool(given, name)
    if hasattr(given, "openai_schema") and hasattr(given, "run"):
        return given if name in ("", given.name) else _Renamed(given, name)
    function = given if inspect.isroutine(given) else getattr(given, "execute", None)
    if not callable(function):
        raise InvalidArgument(field or f"tools.{name}", f"{given!r:.60} is not a function, and has no method execute")
    own_name = name or getattr(given, "name", "") or getattr(function, "__name__", "")
    about = getattr(given, "description", "") or inspect.getdoc(function) or inspect.getdoc(type(given)) or ""
    return Tool(function, name=own_name, description=str(about), untyped=True)


class StatefulTool:
    """A BaseTool, of whose class each trajectory gets a new object. An object itself serves all trajectories.

    It shows the schema. open() gives the tool of one trajectory.
    """

    def __init__(self, given: BaseTool | type[BaseTool], name: str) -> None:
        self._given = given
        shown = given() if isinstance(given, type) else given
        self._shown = shown.as_tool(name)
        self.name = self._shown.name

    def openai_schema(self) -> ToolDict:
        """Return the schema in OpenAI's format."""
        return self._shown.openai_schema()

    def of_trajectory(self) -> BaseTool:
        """Return the object for a trajectory."""
        return self._given() if isinstance(self._given, type) else self._given

    async def run(self, arguments: Mapping[str, Any], context: Any = None) -> Any:
        """Raise ToolExecutionError, because no trajectory has created the tool."""
        raise ToolExecutionError(f"the tool {self.name} belongs to a rollout, and none runs", "", self.name)


async def open_stateful(
    tools: Mapping[str, Any], trajectory_id: str, stack: AsyncExitStack
) -> ToolsOfTrajectory | None:
    """Create the stateful ones of these tools for a trajectory. `stack` releases them. None if there are none."""
    stateful = {name: each.of_trajectory() for name, each in tools.items() if isinstance(each, StatefulTool)}
    return await stack.enter_async_context(ToolsOfTrajectory(trajectory_id, stateful)) if stateful else None


class _Renamed:
    def __init__(self, inner: Any, name: str) -> None:
        self.name, self._inner, self.run = name, inner, inner.run

    def openai_schema(self) -> ToolDict:
        """Return the schema with the new name."""
        schema: Any = self._inner.openai_schema()
        return {**schema, "function": {**schema["function"], "name": self.name}}


def as_tools(given: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    """Return tools by name. Raises InvalidArgument for two tools of one name, and for a tool that is in no list."""
    if isinstance(given, Mapping):
        return {name: as_tool(each, name) for name, each in given.items()}
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise InvalidArgument("tools", f"is a {kind}; pass a list of tools, or an object of names and tools")
    made = [as_tool(each, field=f"tools[{index}]") for index, each in enumerate(given)]
    tools = {each.name: each for each in made}
    if len(tools) < len(made):
        raise InvalidArgument("tools", "two tools have the same name")
    return tools
