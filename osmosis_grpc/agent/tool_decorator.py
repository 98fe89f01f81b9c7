"""`@tool` makes a tool of a typed function: its schema, the check of its arguments, its timeout.

    @tool
    async def add(a: float, b: float) -> float:
        "Adds two numbers."
        return a + b

An agent loop lists its tools in `tools`, and `ctx.run_tools(reply)` runs the calls of a reply.
"""

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, ParamSpec, TypeVar, get_args, get_type_hints, overload

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from osmosis_grpc.agent.argument_check import check_arguments
from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.sync_context import SyncRolloutContext
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.protocol.types import ToolDict
from osmosis_grpc.supervise import DaemonThreads

log = logging.getLogger(__name__)

TIMEOUT = 60.0
"""The seconds after which a call fails, unless the tool has a timeout of its own."""
THREADS = 64
"""At most this many calls of sync tools run at once in a process. Calls after their timeout do not count."""
KEPT = 256
"""The schemas of so many signatures are kept."""
LOST = 512
"""At most this many threads of sync tools that do not return are replaced."""

P = ParamSpec("P")
R = TypeVar("R")

_threads = DaemonThreads(THREADS, replaced=LOST, name="sync tools")
_PROBLEMS = {"missing_keyword_only_argument": "is missing", "unexpected_keyword_argument": "is not a parameter"}
"""The texts for two errors of pydantic, by their type. The texts of other errors are pydantic's."""
_PARAMETER = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool(Generic[P, R]):
    """A tool of an agent, made by `@tool`. Calling it calls the function itself.

    A parameter with the type RolloutContext gets the context of the rollout; in a plain `def`, its type is
    SyncRolloutContext. The model does not see it.

    Args:
        function: The function, sync or async.
        name: The name by which the model calls the tool; by default the name of the function.
        description: What the model reads; by default the docstring, without its section `Args:`.
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
        text, descriptions = _documentation(function)
        self._arguments: TypeAdapter[Any] | None = None
        self._context_name = ""
        if parameters is None:
            signature, self._context_name = _signature(function, untyped)
            self._arguments, schema = _checked(function, signature)
            parameters = _parameters(schema, descriptions)
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
            arguments: The arguments, as the model gave them.
            context: The context of the rollout, for functions that take it.

        Raises:
            ToolArgumentError: The arguments do not fit.
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
            if not limit.expired():  # the function itself raised it
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
        """Call a sync function on a thread. Its context waits, and is closed when this method is left.

        The time limit begins when a thread begins with the function.
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
        function: The function. `@tool(name=...)` takes it, too.
        **options: `name`, `description` and `timeout` of Tool.

    Raises:
        TypeError: A model cannot give the parameters by name, or a type has no JSON schema.
    """
    if function is None:
        return lambda given: Tool(given, **options)
    return Tool(function, **options)


def _signature(function: Callable[..., Any], untyped: bool) -> tuple[inspect.Signature, str]:
    """Return the signature that the model sees, and the name of the parameter for the context; empty if none."""
    name = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # a name that only a type checker imports
        if not untyped:
            raise
        hints = {}
    own = RolloutContext if inspect.iscoroutinefunction(function) else SyncRolloutContext
    context, seen = "", []
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if untyped and parameter.kind is parameter.VAR_KEYWORD:
            seen.append(parameter.replace(annotation=Any))
            continue
        if parameter.kind not in _KINDS:
            raise TypeError(f"tool {name}: a model cannot give {parameter} by name; name each parameter")
        if parameter.name not in hints and not untyped:
            if index == 0 and parameter.name in ("self", "cls"):
                text = f"make the tool in __init__: self.tools = (tool(self.{name}),)"
                raise TypeError(f"tool {name}: @tool is for functions; for a method, {text}")
            raise TypeError(f"tool {name}: the parameter {parameter.name!r} has no type: write {parameter.name}: str")
        hint = hints.get(parameter.name, Any)
        contexts = [each for each in (hint, *get_args(hint)) if each in (RolloutContext, SyncRolloutContext)]
        if not contexts:
            seen.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
        elif contexts[0] is own:
            context = parameter.name
        else:
            kind = "an async def" if own is RolloutContext else "a plain def"
            raise TypeError(f"tool {name}: {kind} gets a {own.__name__}; give {parameter.name!r} this type")
    return inspect.Signature(seen), context


def _checked(function: Callable[..., Any], signature: inspect.Signature) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Return pydantic's check of the arguments and a new JSON schema.

    Raises TypeError naming a parameter whose type has no schema.
    """
    # The text tells apart what is equal to Python but not in JSON: the defaults 1, 1.0 and True.
    key = (signature, str(signature), function.__name__, function.__module__)
    try:
        adapter, schema = _made(*key)
    except TypeError:  # a default that has no hash, or a type without a schema
        adapter, schema = _made.__wrapped__(*key)
    return adapter, json.loads(schema)


@lru_cache(maxsize=KEPT)
def _made(signature: inspect.Signature, text: str, name: str, module: str) -> tuple[TypeAdapter[dict[str, Any]], str]:
    """Make the check and the schema, as JSON, of the functions with this signature.

    pydantic takes milliseconds for them, and an agent makes its tools again for each rollout.
    """
    for parameter in signature.parameters.values():
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except PydanticUserError:
            problem = f"the type of the parameter {parameter.name!r}, {parameter.annotation!r}, has no JSON schema"
            raise TypeError(f"tool {name}: {problem}; use a type of JSON, a pydantic model or a dataclass") from None
    adapter = TypeAdapter(_collector(signature, name, module))
    return adapter, json.dumps(adapter.json_schema())


def _collector(signature: inspect.Signature, name: str, module: str) -> Any:

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    collect.__signature__ = signature  # type: ignore[attr-defined]
    collect.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    collect.__name__ = collect.__qualname__ = name
    collect.__module__ = module
    return collect


def _problem(error: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {_PROBLEMS.get(error['type'], error['msg'])}"


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    lines = inspect.getdoc(function) or ""
    text, _, rest = lines.partition("\nArgs:\n")
    descriptions: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        if line.strip() and not line.startswith(" "):
            break  # the next section
        found = _PARAMETER.match(line)
        if found:
            last = found[1]
            descriptions[last] = found[2].strip()
        elif last and line.strip():
            descriptions[last] += f" {line.strip()}"
    text = re.split(r"\n(?:Returns|Raises|Yields):\n", text)[0]
    return " ".join(text.split()), descriptions


def _parameters(schema: dict[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for name, inner in properties.items():
        inner.pop("title", None)
        if name in descriptions:
            inner.setdefault("description", descriptions[name])
    made = {"type": "object", "properties": properties}
    return made | {key: schema[key] for key in ("required", "$defs", "additionalProperties") if key in schema}
