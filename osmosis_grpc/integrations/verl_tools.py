"""Uses tools of verl in agents of this package, and the other way round. Needs the extra `verl`."""

from collections.abc import Callable
from typing import Any

from osmosis_grpc.agent.tool_calls import tool_text
from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError, ToolExecutionError
from osmosis_grpc.tools import BaseTool, Tool

try:
    from verl.tools.base_tool import BaseTool as VerlTool
    from verl.tools.function_tool import FunctionTool, function_tool
except ImportError as error:
    raise MissingExtraError("tools of verl", "verl") from error

__all__ = ["offer_to_verl", "tool_of_verl"]


def tool_of_verl(given: Any, **create_kwargs: Any) -> Any:
    """Convert a tool of verl to one for `set_tools` or `tools=`.

    Its result is the text of verl's response. The reward of single calls is dropped.

    Args:
        given: An instance of a verl BaseTool, or a FunctionTool of verl's registry.
        **create_kwargs: For a BaseTool: the arguments with which each rollout creates its instance.

    Raises:
        InvalidArgument: `given` is neither.
    """
    if not isinstance(given, VerlTool | FunctionTool):
        raise InvalidArgument("given", f"is a {type(given).__name__}, not a BaseTool or FunctionTool of verl")
    function = given.tool_schema.model_dump(exclude_none=True)["function"]
    about = {"name": function["name"], "description": function["description"], "parameters": function["parameters"]}
    if isinstance(given, FunctionTool):
        return Tool(_call_of(given), timeout=None, **about)
    return type(function["name"], (_Created,), {"given": given, "create_kwargs": create_kwargs, **about})


def offer_to_verl(tool: Any) -> Any:
    """Register a tool of this package, made by `@tool` or a tool maker, in verl, and return it.

    Call it in the file that `actor_rollout_ref.rollout.multi_turn.function_tool_path` names. Raises InvalidArgument for
    a tool with state, and ValueError for a schema that verl cannot represent.
    """
    if not hasattr(tool, "run") or not hasattr(tool, "openai_schema"):
        raise InvalidArgument("tool", f"{tool!r:.60} is not what @tool makes")

    async def call(**arguments: Any) -> str:
        return tool_text(await tool.run(arguments), tool.name)

    function_tool(tool.name, schema=tool.openai_schema())(call)
    return tool


def _call_of(given: Any) -> Callable[..., Any]:
    async def call(**arguments: Any) -> Any:
        return await given.call(arguments)

    return call


class _Created(BaseTool):
    """One instance of a verl BaseTool, for one rollout."""

    given: Any
    create_kwargs: dict[str, Any]
    _instance: str | None = None

    async def create(self, trajectory_id: str) -> None:
        self._instance, _ = await self.given.create(create_kwargs=self.create_kwargs)

    async def execute(self, **arguments: Any) -> Any:
        """Run one call. Raises ToolExecutionError for a response with images or videos."""
        response, _, _ = await self.given.execute(self._instance, arguments)
        if response.image or response.video:
            raise ToolExecutionError("the tool returned images, and only texts are results", "", self.name)
        return response.text or ""

    async def reward(self) -> float | None:
        reward: float | None = await self.given.calc_reward(self._instance)
        return reward

    async def release(self) -> None:
        if self._instance is not None:
            await self.given.release(self._instance)
