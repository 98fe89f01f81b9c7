"""Makes the JSON schema of a tool from its function: the types and the docstring."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from pydantic import PydanticUserError, TypeAdapter

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.sync_context import SyncRolloutContext

KEPT = 256
"""The number of signatures whose schemas are kept."""

_PARAMETER = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def seen_signature(function: Callable[..., Any], untyped: bool) -> tuple[inspect.Signature, str]:
    """Return the signature without the parameter for the context, and the name of this parameter; empty if none."""
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


def check_and_schema(
    function: Callable[..., Any], signature: inspect.Signature
) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Return pydantic's check of the arguments and a new JSON schema.

    Raises TypeError naming a parameter whose type has no schema.
    """
    # The text distinguishes defaults that are equal in Python but not in JSON: 1, 1.0 and True.
    key = (signature, str(signature), function.__name__, function.__module__)
    try:
        adapter, schema = _made(*key)
    except TypeError:  # a default that has no hash, or a type without a schema
        adapter, schema = _made.__wrapped__(*key)
    return adapter, json.loads(schema)


@lru_cache(maxsize=KEPT)
def _made(signature: inspect.Signature, text: str, name: str, module: str) -> tuple[TypeAdapter[dict[str, Any]], str]:
    """Make the check and the schema, as JSON, of the functions with this signature.

    They are cached, because pydantic needs milliseconds for them, and an agent makes its tools again for each rollout.
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


def documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a function and the descriptions of its parameters, from its docstring."""
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


def parameters_schema(schema: dict[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    """Return pydantic's schema as the `parameters` of a tool, without titles and with descriptions."""
    properties = schema.get("properties", {})
    for name, inner in properties.items():
        inner.pop("title", None)
        if name in descriptions:
            inner.setdefault("description", descriptions[name])
    made = {"type": "object", "properties": properties}
    return made | {key: schema[key] for key in ("required", "$defs", "additionalProperties") if key in schema}
