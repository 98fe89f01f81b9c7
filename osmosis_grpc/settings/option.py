"""Describes one option: its flags, variable, bounds and help.

The classes in server_options.py and client_options.py declare every option once. The settings models (settings.py), the
commands with their --help (typer_command.py), the tables of TOML files, and docs/settings.md (scripts/settings.py) read
these declarations.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

__all__ = [
    "BOTH",
    "GATEWAY",
    "PORTS",
    "PREFIX",
    "Declared",
    "Option",
    "Secret",
    "host_port",
    "option",
    "options_in",
    "split_host_port",
]

PREFIX = "OSMOSIS_ROLLOUT_"
"""The prefix of every environment variable of this project."""
BOTH = ("serve", "gateway")
GATEWAY = ("gateway",)
"""Values for Option.commands. An option belongs to `serve` only by default."""
PORTS = (0, 65535)

if TYPE_CHECKING:
    from pydantic import BaseModel as Declared
    from pydantic import SecretStr as Secret
else:

    class Declared:
        """The base of the options classes. A type checker sees a pydantic model, because the settings are models."""

    class Secret:
        """Stands for pydantic's SecretStr, because importing pydantic would make --help three times slower."""

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            """Return the schema of SecretStr."""
            from pydantic import SecretStr

            return handler.generate_schema(SecretStr)


@dataclass(slots=True, eq=False)
class Option:
    """One option, as an attribute of an options class. Read from the class, the attribute is the default value."""

    group: str
    """The heading in --help and in docs/settings.md."""
    usage: str
    """The flags and the placeholder, as --help shows them: `-p, --http-port PORT`.

    A switch has no placeholder. The usage of an option without a flag, which has only a variable, is empty.
    """
    help: str
    value: Any = None
    """The default. Without one, a switch is off and a list is empty. A text may not be empty: without a default it is
    `str | None`."""
    commands: tuple[str, ...] = ("serve",)
    bounds: tuple[float, float] | None = None
    """The smallest and the largest allowed value."""
    check: Callable[[str], str] | None = None
    """Returns a good value, and raises ValueError for a bad one. Called for each value of a list."""
    lines: bool = False
    """Whether the value is a text with several values, one on each line. The flag can then be repeated."""
    shown: str | None = None
    """A text to show instead of the default."""
    common: bool = False
    """Whether --help shows the option. --help-all shows all options."""
    part: str = field(init=False)
    """The part of the settings that has the option: server or client."""
    name: str = field(init=False)
    """The name of the setting, and its key in the table [server] of a TOML file."""
    kind: type = field(init=False)
    """str, int, float, bool, Path, Secret, or tuple for a list."""

    def __set_name__(self, owner: Any, name: str) -> None:
        hint = inspect.get_annotations(owner)[name]
        kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
        self.part, self.name = owner.part, name
        self.kind = tuple if kinds[-1] is ... else kinds[0]
        if self.value == "":
            raise ValueError(f"{name}: a text without a default is `str | None`")
        if self.value is None and self.kind in (bool, tuple):
            self.value = self.kind()

    def __get__(self, instance: object, owner: type) -> Any:
        return self.value

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags. The long flag is last; for a switch, the flag that switches it off follows."""
        flags = tuple(word.rstrip(",") for word in self.usage.split() if word.startswith("-"))
        return (*flags, self.off) if flags and self.switch else flags

    @property
    def flag(self) -> str:
        """The long flag; empty for an option without a flag."""
        return next((word for word in reversed(self.usage.split()) if word.startswith("--")), "")

    @property
    def off(self) -> str:
        """The flag that switches the option off: --no-NAME for --NAME, and --NAME for --no-NAME.

        With this flag, the command line can override an environment variable.
        """
        name = self.flag.removeprefix("--no-")
        return f"--{name}" if name != self.flag else f"--no-{name[2:]}"

    @property
    def metavar(self) -> str:
        """The placeholder of the value; empty for a switch."""
        return "".join(word for word in self.usage.split() if not word.startswith("-"))

    @property
    def variable(self) -> str:
        """The environment variable of the option."""
        return f"{PREFIX}{self.part}_{self.name}".upper()

    @property
    def switch(self) -> bool:
        """Whether the option is a switch, whose flag takes no value."""
        return self.kind is bool

    @property
    def several(self) -> bool:
        """Whether the flag can be repeated."""
        return self.kind is tuple or self.lines

    @property
    def range(self) -> str:
        """The bounds as text; empty without bounds."""
        return " to ".join(f"{bound:.12g}" for bound in self.bounds or ())

    @property
    def default(self) -> str:
        """The default as text; empty without a default."""
        if self.shown is not None:
            return self.shown
        if self.switch:
            return "on" if self.value else "off"
        text = f"{self.value:.12g}" if isinstance(self.value, float) else str(self.value)
        return "" if self.value in (None, (), "") else text

    def checked(self, value: Any) -> Any:
        """Return the value if the option allows it. Raises ValueError if not."""
        if self.bounds is not None and value is not None and not self.bounds[0] <= value <= self.bounds[1]:
            raise ValueError(f"{str(value)[:40]} is not in the range {self.range}")
        if self.check is not None and value:
            return tuple(map(self.check, value)) if isinstance(value, tuple) else self.check(value)
        return value


def options_in(declared: type) -> tuple[Option, ...]:
    """Return the options that a class declares, in their order."""
    return tuple(each for each in vars(declared).values() if isinstance(each, Option))


if TYPE_CHECKING:

    def option(*declared: Any, **more: Any) -> Any:
        """Declare an option, with the arguments of Option. A type checker sees only the annotation of the attribute."""
else:
    option = Option


def host_port(text: str) -> str:
    """Return a HOST:PORT unchanged. Raises ValueError for any other text."""
    split_host_port(text)
    return text


def split_host_port(text: str) -> tuple[str, int]:
    """Split HOST:PORT into the host, without brackets, and the port. Raises ValueError."""
    if "@" in text:
        raise ValueError("an address with @ is not HOST:PORT; give a token with its own option")
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text} is not HOST:PORT")
    return host.strip("[]"), int(port)
