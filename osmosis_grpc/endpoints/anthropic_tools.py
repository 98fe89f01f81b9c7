"""Converts typed tools of Anthropic's Messages API that the client runs, such as bash, to functions for a policy."""

from collections.abc import Mapping
from typing import Any

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}


def _schema(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


_EDITOR = _schema(
    "command path",
    command=_commands("view", "create", "str_replace", "insert", "undo_edit"),
    path=_TEXT | {"description": "An absolute path."},
    file_text=_TEXT | {"description": "The content, for create."},
    old_str=_TEXT | {"description": "The text to replace. It has to occur once."},
    new_str=_TEXT | {"description": "The text in its place, or the text to insert."},
    insert_text=_TEXT | {"description": "The text to insert after insert_line."},
    insert_line=_NUMBER | {"description": "The line after which insert writes; 0 for the beginning."},
    view_range={"type": "array", "items": _NUMBER, "description": "The first and the last line to view."},
)
_CLIENT_TOOLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "bash_",
        "Run a command in a bash shell that stays open between calls.",
        _schema("", command=_TEXT, restart={"type": "boolean", "description": "Start the shell again."}),
    ),
    ("text_editor_", "View and edit files.", _EDITOR),
    (
        "memory_",
        "View and edit the files of the memory folder /memories.",
        _schema(
            "command",
            command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
            path=_TEXT,
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_NUMBER,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
    (
        "computer_",
        "Use the mouse and the keyboard of a computer, and look at its screen.",
        _schema(
            "action",
            action=_TEXT | {"description": "screenshot, left_click, type, key, mouse_move, scroll, wait and so on."},
            coordinate={"type": "array", "items": _NUMBER, "description": "x and y, in pixels."},
            text=_TEXT,
            scroll_direction=_commands("up", "down", "left", "right"),
            scroll_amount=_NUMBER,
            duration={"type": "number"},
        ),
    ),
)
"""The prefix of a tool's type, and the function that the policy gets instead."""


def function_of(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a tool to a function. Return None for a tool that runs on Anthropic's servers."""
    kind = str(tool.get("type") or "")
    described: Mapping[str, Any] | None = None
    if "input_schema" in tool:
        described = {"description": tool.get("description"), "parameters": tool["input_schema"]}
    for beginning, description, schema in _CLIENT_TOOLS:
        if described is None and kind.startswith(beginning):
            described = {"description": description, "parameters": schema}
    if described is None:
        return None
    function = {"name": tool.get("name"), **described}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
