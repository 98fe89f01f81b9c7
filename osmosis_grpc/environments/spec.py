"""Reads the text that names an environment and its options: KIND:NAME[,KEY=VALUE...]."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

PREFIX = "env:"
"""What stands before the name of an environment where the name of an agent or a file is expected."""
KIND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NEXT_OPTION = re.compile(r",(?=[A-Za-z_][A-Za-z0-9_.]*=)")
"""The comma before an option. Other commas belong to the name or to the value, as in size=[1,2]."""
FORM = "KIND:NAME[,KEY=VALUE...], for example reasoning-gym:leg_counting,size=50"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment's kind, its name in its library, and its options."""

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> "EnvironmentSpec":
        """Return the spec that a text names. Raises ValueError for another text.

        A value is JSON if it can be read as JSON, and otherwise the text as it is.
        """
        kind, colon, rest = text.partition(":")
        name, *pairs = NEXT_OPTION.split(rest)
        if not colon or not name.strip() or not KIND.fullmatch(kind):
            raise ValueError(f"{text!r} is not {FORM}")
        options: dict[str, Any] = {}
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key in options:
                raise ValueError(f"{text!r} has {key} twice")
            options[key] = _value(value)
        return cls(kind, name, MappingProxyType(options))

    @property
    def agent_name(self) -> str:
        """The name of the environment as an agent loop: KIND:NAME."""
        return f"{self.kind}:{self.name}"

    def __str__(self) -> str:
        """Return the text with the options in order of their keys. Equal specs have equal texts."""
        pairs = (f",{key}={_text(value)}" for key, value in sorted(self.options.items()))
        return self.agent_name + "".join(pairs)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose names have dots as objects in objects: a.b=1 as {"a": {"b": 1}}."""
    made: dict[str, Any] = {}
    for name, value in options.items():
        into, (*path, last) = made, name.split(".")
        for each in path:
            into = into.setdefault(each, {})
        into[last] = value
    return made
