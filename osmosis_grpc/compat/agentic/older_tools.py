"""The tool classes of the Agentic Rollout Library: its own tools, and the bases of authors' tools with execute_tool().

`set_tools({"bash_executor": BashExecutorTool({...})})` is the same as an entry of tools_config with these options. The
tools of a rollout share its sandbox.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from osmosis_grpc.protocol.errors import InvalidArgument, ToolExecutionError
from osmosis_grpc.protocol.types.messages import dump_model
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionToolSchema
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.tools.base_tool import BaseTool


@dataclass(kw_only=True)
class ToolResult:
    """The result of execute_tool()."""

    success: bool
    result: Any = None
    error: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    reward_score: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(kw_only=True)
class ToolCallInfo:
    """One call of a tool."""

    tool_name: str
    instance_id: str
    parameters: dict[str, Any]
    call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def create_openai_tool_schema(
    name: str, description: str, parameters: Mapping[str, Any], required: Sequence[str] | None = None
) -> OpenAIFunctionToolSchema:
    """Return the schema of a tool.

    Args:
        name: The name by which a model calls the tool.
        description: What the tool does.
        parameters: The JSON schema of each parameter by its name.
        required: The names of the required parameters.
    """
    schema = {"type": "object", "properties": dict(parameters), "required": list(required or ())}
    function = {"name": name, "description": description, "parameters": schema}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


class BaseAgenticTool(ABC):
    """A tool that keeps state. A subclass implements get_openai_tool_schema() and execute_tool().

    Each trajectory has its own state, an "instance": create_instance() makes it, and release_instance() ends it.

    Args:
        config: Options for the subclass.
        tool_schema: The schema, for a subclass without get_openai_tool_schema().
    """

    def __init__(self, config: Mapping[str, Any] | None = None, tool_schema: Any = None) -> None:
        self.config = dict(config or {})
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = str(schema_of(self)["name"])

    def get_openai_tool_schema(self) -> Any:
        """Return the schema in OpenAI's format."""
        raise NotImplementedError(f"{type(self).__name__} has no schema: write get_openai_tool_schema()")

    def get_description(self) -> str:
        """Return the schema as JSON."""
        return json.dumps(dump_model(self.tool_schema), ensure_ascii=False, indent=2)

    async def create_instance(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Make an instance for a trajectory, and return the id of the instance."""
        made = instance_id or SYSTEM.new_id()
        await self._initialize_instance(made, **kwargs)
        return made

    async def _initialize_instance(self, instance_id: str, **kwargs: Any) -> None:  # noqa: B027
        """Prepare an instance. A subclass may override this."""

    @abstractmethod
    async def execute_tool(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> ToolResult:
        """Run one call."""

    async def calculate_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the reward of an instance. Agents do not call this: they add the reward_score of each result."""
        return 0.0

    async def release_instance(self, instance_id: str, **kwargs: Any) -> None:
        """End an instance."""
        await self._cleanup_instance(instance_id, **kwargs)

    async def _cleanup_instance(self, instance_id: str, **kwargs: Any) -> None:  # noqa: B027
        """Free the resources of an instance. A subclass may override this."""

    def validate_parameters(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether all required parameters are present."""
        required = (schema_of(self).get("parameters") or {}).get("required") or ()
        return all(name in parameters for name in required)


AgenticBaseTool = BaseAgenticTool


class SimpleAgenticTool(BaseAgenticTool):
    """A tool that keeps no state. A subclass implements simple_execute().

    Args:
        name: The name by which a model calls the tool.
        description: What the tool does.
        parameters: The JSON schema of each parameter by its name.
        required: The names of the required parameters.
        config: Options for the subclass.
    """

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        required: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, create_openai_tool_schema(name, description, parameters, required))

    async def execute_tool(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> ToolResult:
        """Run simple_execute(). An exception becomes a failed result."""
        try:
            return ToolResult(success=True, result=await self.simple_execute(parameters, **kwargs))
        except Exception as error:
            return ToolResult(success=False, error=str(error) or type(error).__name__)

    async def simple_execute(self, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """Run one call, and return its result."""
        raise NotImplementedError(f"{type(self).__name__} has no method simple_execute")


def schema_of(tool: Any) -> Mapping[str, Any]:
    """Return the `function` object of a tool's schema. Raises InvalidArgument if there is none."""
    given = getattr(tool, "tool_schema", None) or getattr(tool, "get_openai_tool_schema", lambda: None)()
    schema = dump_model(given)
    function = schema.get("function") if isinstance(schema, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        raise InvalidArgument("tools", f"{type(tool).__name__} has no schema; write get_openai_tool_schema()")
    return function


class InstanceTool(BaseTool):
    """One instance of a tool with execute_tool(), for one trajectory. Its reward is the sum over its results."""

    given: ClassVar[Any]

    def __init__(self) -> None:
        self._id = ""
        self._reward: float | None = None

    async def create(self, trajectory_id: str) -> None:
        """Make the instance."""
        make = getattr(self.given, "create_instance", None)
        made = None if make is None else await _awaited(make(trajectory_id))
        self._id = made if isinstance(made, str) else trajectory_id

    async def execute(self, **arguments: Any) -> Any:
        """Run one call. Raises ToolExecutionError if the tool reports no success."""
        result = await _awaited(self.given.execute_tool(self._id, arguments))
        if not hasattr(result, "success"):
            return result
        if getattr(result, "reward_score", 0.0):
            self._reward = (self._reward or 0.0) + result.reward_score
        if not result.success:
            raise ToolExecutionError(str(result.error or "the tool failed without a reason"), "", self.name)
        return result.result

    async def reward(self) -> float | None:
        """Return the sum of the rewards of the results."""
        return self._reward

    async def release(self) -> None:
        """End the instance."""
        end = getattr(self.given, "release_instance", None)
        if end is not None and self._id:
            await _awaited(end(self._id))


def instance_tool(given: Any) -> type[InstanceTool]:
    """Return the InstanceTool class for a tool with execute_tool(). Raises InvalidArgument without a schema."""
    schema = schema_of(given)
    fields = {
        "given": given,
        "name": schema["name"],
        "description": str(schema.get("description") or ""),
        "parameters": dict(schema.get("parameters") or {"type": "object", "properties": {}}),
    }
    return type(type(given).__name__, (InstanceTool,), fields)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class NamedTool:
    """A tool of this package with its options, for set_tools().

    Args:
        config: The options, as in tools_config.
    """

    kind: ClassVar[str]
    """The name of the tool in tools_config."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.options = dict(config or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"


CalculatorTool, BashExecutorTool, FileEditorTool, SearchTool, FinishTool = (
    type(name, (NamedTool,), {"kind": kind, "__module__": __name__, "__doc__": f"The tool {kind}."})
    for name, kind in {
        "CalculatorTool": "calculator",
        "BashExecutorTool": "bash_executor",
        "FileEditorTool": "file_editor",
        "SearchTool": "search",
        "FinishTool": "finish",
    }.items()
)
