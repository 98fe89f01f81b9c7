"""The values that a command line has for the declared options, and OptionError for wrong values."""

from typing import Any

from osmosis_grpc.settings.client_options import CLIENT
from osmosis_grpc.settings.option import Option
from osmosis_grpc.settings.server_options import SERVER

OPTIONS = {option.variable: option for option in (*SERVER, *CLIENT)}
"""Environment variable to option, for the options of all commands."""


def options_of(command: str) -> tuple[Option, ...]:
    """Return the options of a command (serve or gateway), including those without a flag."""
    return tuple(option for option in OPTIONS.values() if command in option.commands)


class OptionError(ValueError):
    """An option that cannot be used. Its text names options by their fields, and gets their names when it is shown.

    Args:
        text: What is wrong, and what to do. `{grpc_port}` in it is the option of the server with this name, and
            `{client_target}` an option of the client.
        values: The other values in the text.
    """

    def __init__(self, text: str, /, **values: object) -> None:
        super().__init__(text)
        self.text, self.values = text, values

    def named(self, names: dict[str, str]) -> str:
        """Return the text with the names of options. See settings.option_names()."""
        return self.text.format(**names | self.values)

    def __str__(self) -> str:
        return self.named({field_of(option): option.flag or option.variable for option in OPTIONS.values()})


def field_of(option: Option) -> str:
    """Return the name of an option in the text of an OptionError."""
    return option.name if option.part == "server" else f"client_{option.name}"


class Line:
    """The values of a command line, by variable. Options that the line does not give are missing."""

    def __init__(self, command: str, values: dict[str, Any]) -> None:
        self.given: dict[str, dict[str, Any]] = {"server": {}, "client": {}}
        """Part of the settings to name to value."""
        self.in_file: dict[str, str] = {}
        """The variables of the settings that a file has, and where."""
        for option in options_of(command):
            value = values.get(option.variable)
            if value is not None and value != []:
                value = "\n".join(value) if option.lines else tuple(value) if option.several else value
                self.given[option.part][option.name] = value

    def has(self, part: str, name: str) -> bool:
        """Return whether the line gives an option."""
        return name in self.given[part]
