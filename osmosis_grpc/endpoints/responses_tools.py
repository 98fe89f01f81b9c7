"""Converts tools of OpenAI's Responses API that are not functions to functions for a policy, and their calls to items.

A program gets each call in the form in which it offered the tool. For example, the policy sees a function `apply_patch`
with one text as its argument, and the program gets an item `custom_tool_call` with this text as its input.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from osmosis_grpc.agent.message_keys import arguments_object
from osmosis_grpc.endpoints.model_request import objects, typed

_TEXTS = {"type": "array", "items": {"type": "string"}}
_OWN_SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "local_shell": (
        "Run a command on this machine.",
        {
            "type": "object",
            "properties": {
                "command": _TEXTS | {"description": "The program and its arguments."},
                "working_directory": {"type": "string"},
                "timeout_ms": {"type": "integer"},
            },
            "required": ["command"],
        },
    ),
    "shell": (
        "Run commands in a shell.",
        {
            "type": "object",
            "properties": {"commands": _TEXTS, "timeout_ms": {"type": "integer"}},
            "required": ["commands"],
        },
    ),
    "apply_patch": (
        "Create, update or delete a file.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {"type": "string", "description": "The change, in the V4A format."},
            },
            "required": ["type", "path"],
        },
    ),
}
"""The descriptions and parameters of the tools that are named by their type."""
_CALLS = {"local_shell": "action", "shell": "action", "apply_patch": "operation"}
"""The key that has the arguments in the item of a call, by type of tool."""

Kinds = dict[str, tuple[str, ...]]


def functions_of(tools: Any, path: str, kinds: Kinds, ignored: list[str]) -> list[dict[str, Any]]:
    """Convert tools to functions. Add their kinds to `kinds`, and tools that run on OpenAI's servers to `ignored`."""
    return [function for at, tool in objects(tools, path) for function in _functions(tool, at, kinds, ignored)]


def _functions(tool: Mapping[str, Any], path: str, kinds: Kinds, ignored: list[str]) -> Iterator[dict[str, Any]]:
    kind = tool.get("type")
    if kind == "function":
        yield _function({name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool})
    elif kind == "custom":
        name = typed(tool.get("name"), str, f"{path}.name")
        kinds[name] = ("custom",)
        yield _function(_custom(name, tool))
    elif kind == "namespace":
        space = typed(tool.get("name"), str, f"{path}.name")
        for at, inner in objects(tool.get("tools"), f"{path}.tools"):
            made: Kinds = {}
            for function in _functions(inner, at, made, ignored):
                named = function["function"]
                whole = _whole_name(space, named["name"])
                kinds[whole] = ("namespace", space, named["name"], *made.get(named["name"], ()))
                yield {**function, "function": {**named, "name": whole}}
    elif kind in _OWN_SCHEMAS:
        kinds[kind] = (kind,)
        description, parameters = _OWN_SCHEMAS[kind]
        yield _function({"name": kind, "description": description, "parameters": parameters})
    else:
        ignored.append(f"{path}: {kind}")


def _function(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _custom(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function that takes one text. The function's description has the grammar of the text."""
    format_ = tool.get("format")
    definition = format_.get("definition") if isinstance(format_, Mapping) else None
    grammar = f"\n\nThe input follows this grammar:\n{definition}" if definition else ""
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"name": name, "description": f"{tool.get('description') or ''}{grammar}", "parameters": parameters}


def _whole_name(space: str, name: str) -> str:
    return name if not space or name.startswith(space) else f"{space}{'' if space.endswith('_') else '__'}{name}"


def item_of_call(call: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Convert a tool call to an item of a reply, without the item's id."""
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments") or "{}"
    kind = kinds.get(str(name), ())
    space = {}
    if kind[:1] == ("namespace",):
        space, name, kind = {"namespace": kind[1]}, kind[2], kind[3:]
    made: dict[str, Any] = {"status": "completed", "call_id": call.get("id")}
    if kind == ("custom",):
        return made | {"type": "custom_tool_call", "name": name, "input": _input(arguments)} | space
    if kind:
        action = arguments_object(arguments)
        if kind[0] == "local_shell":
            action = {"type": "exec", "env": {}} | action
        return made | {"type": f"{kind[0]}_call", _CALLS[kind[0]]: action}
    return made | {"type": "function_call", "name": name, "arguments": arguments} | space


def _input(arguments: str) -> str:
    """Return the text of a custom tool's call: the argument `input` or, if it is missing, the whole arguments."""
    value = arguments_object(arguments).get("input")
    return value if isinstance(value, str) else arguments


def call_of_item(item: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """Convert an item of a history to a tool call. Return None if it is not a call. Raises InvalidArgument."""
    kind = str(item.get("type"))
    if kind == "function_call":
        name, arguments = item.get("name"), typed(item.get("arguments") or "{}", str, f"{path}.arguments")
    elif kind == "custom_tool_call":
        name, arguments = item.get("name"), _arguments({"input": typed(item.get("input") or "", str, f"{path}.input")})
    elif (name := kind.removesuffix("_call")) in _CALLS and name != kind:
        action = typed(item.get(_CALLS[name]), dict, f"{path}.{_CALLS[name]}")
        unsaid: dict[str, Any] = {"type": "exec", "env": {}} if name == "local_shell" else {}
        said = {key: value for key, value in action.items() if value is not None and unsaid.get(key) != value}
        arguments = _arguments(said)
    else:
        return None
    whole = _whole_name(str(item.get("namespace") or ""), typed(name, str, f"{path}.name"))
    call_id = typed(item.get("call_id") or item.get("id"), str, f"{path}.call_id")
    return {"id": call_id, "type": "function", "function": {"name": whole, "arguments": arguments}}


def _arguments(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _of_shell(output: Any) -> str:
    """Convert the output of shell commands to text."""
    texts = []
    for each in output if isinstance(output, list) else ():
        if isinstance(each, Mapping):
            outcome = each.get("outcome")
            code = outcome.get("exit_code", outcome.get("type")) if isinstance(outcome, Mapping) else ""
            texts.append(f"{each.get('stdout') or ''}{each.get('stderr') or ''}[exit code {code}]")
    return "\n".join(texts)


OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "function_call_output": lambda output: output,
    "custom_tool_call_output": lambda output: output,
    "local_shell_call_output": lambda output: output,
    "apply_patch_call_output": lambda output: output,
    "shell_call_output": _of_shell,
}
"""For each type of item with a call's result, a function that converts its output to the content of a message."""
