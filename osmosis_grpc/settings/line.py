"""The values that a command line gives to the declared options. The settings read these values."""

import re
from collections.abc import Callable
from typing import Any

from osmosis_grpc.settings.client_options import CLIENT
from osmosis_grpc.settings.option import Option
from osmosis_grpc.settings.server_options import SERVER

OPTIONS = {option.variable: option for option in (*SERVER, *CLIENT)}
"""Environment variable to option, for the options of all commands."""


def options_of(command: str) -> tuple[Option, ...]:
    """Return the options of a command (serve or gateway), including those without a flag."""
    return tuple(option for option in OPTIONS.values() if command in option.commands)


class Line:
    """The values of a command line, by variable. Options that the line does not give are missing."""

    def __init__(self, command: str, values: dict[str, Any]) -> None:
        self._options = [option for option in options_of(command) if option.flags]
        self.given: dict[str, dict[str, Any]] = {"server": {}, "client": {}}
        """Part of the settings to name to value."""
        self.in_file: dict[str, str] = {}
        """The variables of the settings that a file has, and where."""
        for option in self._options:
            value = values.get(option.variable)
            if value is not None and value != []:
                value = "\n".join(value) if option.lines else tuple(value) if option.several else value
                self.given[option.part][option.name] = value

    def has(self, part: str, name: str) -> bool:
        """Return whether the line gives an option."""
        return name in self.given[part]

    def named(self, text: str, is_set: Callable[[Option], bool]) -> str:
        """Return a message that names the variables of options that were set by a variable, instead of their flags.

        `is_set` says whether an option has a value other than the default.
        """
        variables = {
            flag: self.in_file.get(option.variable, option.variable)
            for option in self._options
            for flag in option.flags
            if not self.has(option.part, option.name) and is_set(option)
        }
        return re.sub(r"(?<![\w-])--?[a-z][a-z-]*", lambda match: variables.get(match[0], match[0]), text)
