"""The tools of ctx.tools: dicts whose keys are also attributes, as the schema objects of the Osmosis SDK have them."""

import copy
import json
from collections.abc import Mapping
from typing import Any, Self

_DEFAULTS: Mapping[str, Any] = {"description": None, "enum": None, "strict": False, "type": "object"}
"""The values of attributes whose keys are missing. `type` is that of the parameters of a function."""


class ToolSchema(dict[str, Any]):
    """A tool, or a part of one. `tool.function.name` and `tool["function"]["name"]` are the same value."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        super().__init__({key: _wrapped(value) for key, value in schema.items()})

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key.

        Missing parameters are the parameters of a function without any. Raises AttributeError for an unknown name.
        """
        if name in self:
            return self[name]
        if name == "parameters" and "name" in self:
            return ToolSchema({"type": "object", "properties": {}, "required": []})
        if name in ("properties", "required") and self.get("type", "object") == "object":
            return ToolSchema({}) if name == "properties" else []
        if name in _DEFAULTS:
            return _DEFAULTS[name]
        raise AttributeError(f"a tool schema has no key {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = _wrapped(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __copy__(self) -> Self:
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)({key: copy.deepcopy(value, memo) for key, value in self.items()})

    def model_dump(self, *, mode: str = "python", exclude_none: bool = False) -> dict[str, Any]:
        """Return a plain dict with the keys that were set. All values are JSON, so `mode` changes nothing."""
        kept = {key: value for key, value in self.items() if not (exclude_none and value is None)}
        return {key: _plain(value, exclude_none) for key, value in kept.items()}

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """Return the JSON text of model_dump()."""
        separators = (",", ":") if indent is None else None
        return json.dumps(self.model_dump(**options), ensure_ascii=False, indent=indent, separators=separators)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the keys of `update`."""
        return type(self)({**(copy.deepcopy(self) if deep else self), **(update or {})})


def tool_schema(tool: Any) -> Any:
    """Return a dict as a ToolSchema, and any other value unchanged."""
    return ToolSchema(tool) if type(tool) is dict else tool


def _wrapped(value: Any) -> Any:
    if type(value) is dict:
        return ToolSchema(value)
    return [_wrapped(item) for item in value] if type(value) is list else value


def _plain(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, ToolSchema):
        return value.model_dump(exclude_none=exclude_none)
    return [_plain(item, exclude_none) for item in value] if isinstance(value, list) else value
