"""Reads the text that names an environment and its options: KIND:NAME[,KEY=VALUE...]."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

PREFIX = "env:"
"""The prefix that marks an environment where an agent or a file can be named."""
KIND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NEXT_OPTION = re.compile(r",(?=[A-Za-z_][A-Za-z0-9_.]*=)")
"""The comma before an option. Any other comma belongs to a name or a value, as in size=[1,2]."""
FORM = "KIND:NAME[,KEY=VALUE...], for example reasoning-gym:leg_counting,size=50"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment's kind, its name in its library, and its options."""

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, text: str) -> "EnvironmentSpec":
        """Parse KIND:NAME[,KEY=VALUE...]. Raises ValueError for any other text.

        A value is parsed as JSON. If it is not JSON, it is a string.
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
        """Return the text of the spec, with the options sorted by key. Equal specs have equal texts."""
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
    """Return options with dotted names as nested objects: a.b=1 becomes {"a": {"b": 1}}."""
    made: dict[str, Any] = {}
    for name, value in options.items():
        into, (*path, last) = made, name.split(".")
        for each in path:
            into = into.setdefault(each, {})
        into[last] = value
    return made
