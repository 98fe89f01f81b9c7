"""`@tool` makes a tool of a typed function: its schema, the check of its arguments, its timeout.

    @tool
    async def add(a: float, b: float) -> float:
        "Adds two numbers."
        return a + b

An agent loop lists its tools in `tools`, and `ctx.run_tools(reply)` runs the calls of a reply.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from osmosis_grpc.agent.argument_check import check_arguments
from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.sync_context import SyncRolloutContext
from osmosis_grpc.agent.tool_schema import check_and_schema, documentation, parameters_schema, seen_signature
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import ToolDict
from osmosis_grpc.supervise import DaemonThreads

log = logging.getLogger(__name__)

TIMEOUT = 60.0
"""The default timeout of a call, in seconds."""
THREADS = 64
"""The most calls of sync tools that run at once in a process. Calls after their timeout do not count."""
LOST = 512
"""The most threads of sync tools that do not return and are replaced."""

P = ParamSpec("P")
R = TypeVar("R")

_threads = DaemonThreads(THREADS, replaced=LOST, name="sync tools")
_PROBLEMS = {"missing_keyword_only_argument": "is missing", "unexpected_keyword_argument": "is not a parameter"}
"""The texts for two errors of pydantic, by their type. The texts of other errors are pydantic's."""


class Tool(Generic[P, R]):
    """A tool of an agent, made by `@tool`. Calling it calls the function itself.

    A parameter with the type RolloutContext, or in a plain `def` SyncRolloutContext, gets the context of the rollout.
    It is not part of the schema.

    Args:
        function: The function, sync or async.
        name: The name by which the model calls the tool; by default the name of the function.
        description: The description for the model; by default the docstring without its section `Args:`.
        timeout: The seconds after which a call fails; None for no limit.
        parameters: A JSON schema. The arguments are checked against it, and the function needs no types.
        untyped: Whether a parameter without a type takes any value, and `**kwargs` takes further arguments.

    Raises:
        TypeError: A model cannot give the parameters by name, or a type has no JSON schema.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str = "",
        description: str = "",
        timeout: float | None = TIMEOUT,
        parameters: Mapping[str, Any] | None = None,
        untyped: bool = False,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        """The name by which the model calls the tool."""
        self.timeout = timeout
        """The seconds after which a call fails. None means no limit."""
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        text, descriptions = documentation(function)
        self._arguments: TypeAdapter[Any] | None = None
        self._context_name = ""
        if parameters is None:
            signature, self._context_name = seen_signature(function, untyped)
            self._arguments, schema = check_and_schema(function, signature)
            parameters = parameters_schema(schema, descriptions)
        self._schema: ToolDict = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": description or text or self.name,
                "parameters": dict(parameters),
            },
        }

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def openai_schema(self) -> ToolDict:
        """Return the schema in OpenAI's function format."""
        return self._schema

    def anthropic_schema(self) -> dict[str, Any]:
        """Return the schema in Anthropic's format."""
        function = self._schema["function"]
        return {"name": self.name, "description": function["description"], "input_schema": function["parameters"]}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the types of the function's parameters. Raises ToolArgumentError."""
        if self._arguments is None:
            return check_arguments(self._schema["function"]["parameters"], arguments, self.name)
        try:
            checked: dict[str, Any] = self._arguments.validate_python(ArgsKwargs((), dict(arguments)))
        except ValidationError as error:
            raise ToolArgumentError("; ".join(map(_problem, error.errors())), "", self.name) from None
        return checked

    async def run(self, arguments: Mapping[str, Any], context: RolloutContext | None = None) -> Any:
        """Call the function with arguments of a model, and return its result.

        A sync function runs on a thread. If it does not return, it keeps its thread.

        Args:
            arguments: The model's arguments.
            context: The context of the rollout, for functions that need it.

        Raises:
            ToolArgumentError: The arguments do not match the schema.
            TimeoutError: The function runs longer than `timeout` seconds.
            Exception: The errors of the function.
        """
        function: Callable[..., Any] = self.function
        known = self.check(arguments)
        sync = not inspect.iscoroutinefunction(function)
        try:
            async with asyncio.timeout(None if sync else self.timeout) as limit:
                if sync:
                    result = await self._run_on_thread(known, context, limit)
                else:
                    if self._context_name:
                        known[self._context_name] = context
                    result = await function(**known)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(f"the tool {self.name} returned a coroutine: write `await` before the call")
                return result
        except TimeoutError:
            if not limit.expired():  # raised by the function itself
                raise
            if sync:
                log.warning(
                    "the tool %s has run for %g s; it keeps its thread until it returns (%d threads of tools are lost)",
                    self.name, self.timeout, _threads.lost,
                )  # fmt: skip
            raise TimeoutError(f"{self.name} took longer than {self.timeout:g} s") from None

    async def _run_on_thread(
        self, known: dict[str, Any], context: RolloutContext | None, limit: asyncio.Timeout
    ) -> Any:
        """Call a sync function on a thread, with a context whose methods wait. The context is closed at the end.

        The time limit begins when a thread starts the function.
        """
        function: Callable[..., Any] = self.function
        loop = asyncio.get_running_loop()

        def started() -> None:
            limit.reschedule(None if self.timeout is None else loop.time() + self.timeout)

        sync_context = SyncRolloutContext(context) if self._context_name and context is not None else None
        if self._context_name:
            known[self._context_name] = sync_context
        try:
            return await _threads.run(lambda: function(**known), started)
        finally:
            if sync_context is not None:
                sync_context.close()


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str = "", description: str = "", timeout: float | None = TIMEOUT
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a tool of a function with typed parameters, sync or async.

    The docstring is the description. Its section `Args:` describes the parameters.

    Args:
        function: The function; also for `@tool(name=...)`.
        **options: `name`, `description` and `timeout` of Tool.

    Raises:
        TypeError: A model cannot give the parameters by name, or a type has no JSON schema.
    """
    if function is None:
        return lambda given: Tool(given, **options)
    return Tool(function, **options)


def _problem(error: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {_PROBLEMS.get(error['type'], error['msg'])}"
