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
    """An option cannot be used. The text has the fields of options, which become the options' names when it is shown.

    Args:
        text: What is wrong, and what to do. `{grpc_port}` stands for the server option of this name, and
            `{client_target}` for the client option `target`.
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
    """Return the field that stands for an option in the text of an OptionError."""
    return option.name if option.part == "server" else f"client_{option.name}"


class Line:
    """The options that a command line gives. `values` has them by variable, and None for the others."""

    def __init__(self, command: str, values: dict[str, Any]) -> None:
        self.given: dict[str, dict[str, Any]] = {"server": {}, "client": {}}
        """The values by part (server or client) and by name of the setting."""
        self.in_file: dict[str, str] = {}
        """For settings that come from a file: their places in the file, by variable."""
        for option in options_of(command):
            value = values.get(option.variable)
            if value is not None and value != []:
                value = "\n".join(value) if option.lines else tuple(value) if option.several else value
                self.given[option.part][option.name] = value

    def has(self, part: str, name: str) -> bool:
        """Return whether the line gives an option."""
        return name in self.given[part]
