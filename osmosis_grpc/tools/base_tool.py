"""Tools with a state. For each trajectory, a tool is created, runs its calls, returns its reward, and is released."""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from osmosis_grpc.agent.reward_decorator import reward_of
from osmosis_grpc.agent.tool_decorator import TIMEOUT, Tool
from osmosis_grpc.protocol.errors import GradingError, ToolExecutionError
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.tools.uninterrupted import uninterrupted

log = logging.getLogger(__name__)


class BaseTool:
    """A tool with a state. A subclass defines `execute`, and the other methods that it needs.

    For each trajectory, the methods are called in this order: create() once, execute() for each call, reward() once,
    release() once. The last two are called even if the trajectory fails or is cancelled.
    """

    name: ClassVar[str] = ""
    """The name by which a model calls the tool. The default is the name of the class."""
    description: ClassVar[str] = ""
    """The description for the model. The default is the first line of the class's docstring."""
    parameters: ClassVar[Mapping[str, Any] | None] = None
    """The JSON schema of the arguments. The default is derived from the parameters of `execute`."""
    timeout: ClassVar[float | None] = TIMEOUT
    """The time limit of a call, in seconds. None means no limit."""

    async def create(self, trajectory_id: str) -> None:
        """Prepare the state for a trajectory."""

    async def execute(self, **arguments: Any) -> Any:
        """Run one call, and return its result. A subclass may name the arguments, and may be a plain `def`."""
        raise NotImplementedError(f"{type(self).__name__} has no method execute")

    async def reward(self) -> float | None:
        """Return the reward of the tool for the trajectory; None if it has none."""
        return None

    async def release(self) -> None:
        """Free the resources of create(). Called even if create() has failed."""

    def as_tool(self, name: str = "") -> Tool[..., Any]:
        """Return the tool that an agent lists. Its calls run execute() of this object."""
        cls = type(self)
        return Tool(
            self.execute,
            name=name or cls.name or cls.__name__,
            description=cls.description or (cls.__doc__ or "").strip().partition("\n")[0],
            timeout=cls.timeout,
            parameters=cls.parameters,
            untyped=True,
        )


class ToolsOfTrajectory:
    """The tools of one trajectory, from their creation to their release. Use it with `async with`.

    Leaving the block raises GradingError if the reward of a tool fails, because a sum without it would be wrong.
    """

    def __init__(self, trajectory_id: str, tools: Mapping[str, BaseTool]) -> None:
        self._id, self._given = trajectory_id, dict(tools)
        self._created: list[tuple[str, BaseTool]] = []
        self.tools: dict[str, Tool[..., Any]] = {}
        """The tools for the agent, by name. The same objects answer all calls of the trajectory."""
        self.rewards: dict[str, float | None] = {}
        """The reward of each tool by name, known after the `async with`. None for a tool without a reward."""
        self._unrewarded: tuple[str, Exception] | None = None
        """A tool whose reward() has failed."""

    async def __aenter__(self) -> Self:
        try:
            for name, each in self._given.items():
                self._created.append((name, each))
                await each.create(self._id)
                self.tools[name] = each.as_tool(name)
        except BaseException:
            await uninterrupted(self._release(with_rewards=False))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await uninterrupted(self._release(with_rewards=True))
        if self._unrewarded is not None and error is None:
            name, why = self._unrewarded
            raise GradingError(f"the reward of the tool {name} failed: {describe(why)}", "", name) from why

    async def _release(self, *, with_rewards: bool) -> None:
        """Get the reward of each tool and release it, the newest first. An error of one does not stop the others."""
        created, self._created = self._created, []
        for name, each in reversed(created):
            try:
                if with_rewards:
                    given = await each.reward()
                    self.rewards[name] = None if given is None else reward_of(given)
            except Exception as error:
                self.rewards[name] = None
                self._unrewarded = name, error
                log.warning("the reward of the tool %s failed: %s", name, describe(error))
            finally:
                try:
                    await each.release()
                except Exception as error:
                    log.warning("the tool %s cannot be released: %s", name, describe(error))


class ToolRegistry:
    """Registers tools by name. For a class, each trajectory gets a new object; an object is shared by all."""

    def __init__(self) -> None:
        self._classes: dict[str, tuple[type[BaseTool], dict[str, Any]]] = {}
        self._objects: dict[str, BaseTool] = {}

    def register(self, tool: type[BaseTool] | BaseTool, name: str = "", **options: Any) -> None:
        """Register a tool.

        Args:
            tool: A class, or an object that all trajectories share.
            name: The name by which a model calls the tool; by default the name of the class.
            **options: Arguments for the constructor of a class.

        Raises:
            ValueError: The name is already registered, or options are given for an object.
        """
        cls = tool if isinstance(tool, type) else type(tool)
        if not issubclass(cls, BaseTool):
            raise ValueError(f"tool: {cls.__name__} is not a BaseTool")
        name = name or cls.name or cls.__name__
        if name in self._classes or name in self._objects:
            raise ValueError(f"name: the tool {name!r} is registered already")
        if isinstance(tool, type):
            self._classes[name] = (tool, options)
        elif options:
            raise ValueError(f"{next(iter(options))}: an object takes no options; register its class")
        else:
            self._objects[name] = tool

    def names(self) -> list[str]:
        """Return the sorted names of all tools."""
        return sorted([*self._classes, *self._objects])

    def get(self, name: str) -> BaseTool:
        """Return the shared object, or a new object of the class. Raises ToolExecutionError for an unknown name."""
        if name in self._objects:
            return self._objects[name]
        if name not in self._classes:
            raise ToolExecutionError(
                f"there is no tool {name!r}; the tools are {', '.join(self.names()) or 'none'}", "", name
            )
        cls, options = self._classes[name]
        return cls(**options)

    def info(self, name: str) -> dict[str, Any]:
        """Return a dict about a tool: its name, class and schema, and whether all trajectories share one object."""
        made = self.get(name)
        shared = name in self._objects
        return {
            "name": name,
            "class": type(made).__name__,
            "shared": shared,
            "schema": made.as_tool(name).openai_schema(),
        }

    def schemas(self, form: str = "openai") -> list[dict[str, Any]]:
        """Return the schemas of all tools in the format "openai" or "anthropic". Raises ValueError."""
        tools = [self.get(name).as_tool(name) for name in self.names()]
        if form == "openai":
            return [tool.openai_schema() for tool in tools]
        if form == "anthropic":
            return [tool.anthropic_schema() for tool in tools]
        raise ValueError(f"form: {form!r} is not openai or anthropic")

    def trajectory(self, trajectory_id: str, *names: str) -> ToolsOfTrajectory:
        """Return the tools of one trajectory. Use them in an `async with` block.

        Args:
            trajectory_id: The id that is passed to create() of each tool.
            *names: The names of the tools; by default all tools.

        Raises:
            ToolExecutionError: A name is unknown.
        """
        return ToolsOfTrajectory(trajectory_id, {name: self.get(name) for name in names or self.names()})

    async def release_all(self) -> None:
        """Release the registered objects, and forget every tool."""
        objects, self._objects, self._classes = self._objects, {}, {}
        for each in objects.values():
            await each.release()
