"""The values that a command line gives to the declared options. The settings read these values."""

import re
from collections.abc import Callable
from typing import Any

from osmosis_grpc.settings.client_options import CLIENT
from osmosis_grpc.settings.option import Field
from osmosis_grpc.settings.server_options import SERVER

FIELDS = {field.variable: field for field in (*SERVER, *CLIENT)}
"""Environment variable to option, for the options of all commands."""


def fields_for(command: str) -> tuple[Field, ...]:
    """Return the options of a command (serve or gateway), including those without a flag."""
    return tuple(field for field in FIELDS.values() if command in field.option.commands)


class Line:
    """The values of a command line, without defaults."""

    def __init__(self, command: str, values: dict[str, Any]) -> None:
        self._fields = [field for field in fields_for(command) if field.option.flags]
        self.given: dict[str, dict[str, Any]] = {"server": {}, "client": {}}
        """Part of the settings to field to value."""
        self.in_file: dict[str, str] = {}
        """The fields of the part `server` that a file sets, and where."""
        for field in self._fields:
            value = values[field.key]
            if value is not None and value != []:
                value = "\n".join(value) if field.option.lines else tuple(value) if field.several else value
                self.given[field.part][field.name] = value

    def has(self, part: str, name: str) -> bool:
        """Return whether the line gives an option."""
        return name in self.given[part]

    def named(self, text: str, is_set: Callable[[Field], bool]) -> str:
        """Return a message that names the variables of options that were set by a variable, instead of their flags.

        `is_set` says whether an option has a value other than the default.
        """
        variables = {
            flag: self.in_file.get(field.name, field.variable)
            for field in self._fields
            for flag in field.flags
            if not self.has(field.part, field.name) and is_set(field)
        }
        return re.sub(r"(?<![\w-])--?[a-z][a-z-]*", lambda found: variables.get(found[0], found[0]), text)
