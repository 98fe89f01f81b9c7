"""Describes one option: its flags, its variable, its bounds and its help.

The classes in server_options.py and client_options.py declare every option once, as an annotated field. The settings
models (settings.py), the commands with their --help (command.py) and docs/settings.md (scripts/settings.py) are made
from them.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin

__all__ = [
    "BOTH",
    "GATEWAY",
    "PORTS",
    "PREFIX",
    "Declared",
    "Field",
    "Option",
    "Secret",
    "fields_of",
    "host_port",
    "split_host_port",
]

PREFIX = "OSMOSIS_ROLLOUT_"
"""The prefix of every environment variable of this project."""
BOTH = ("serve", "gateway")
GATEWAY = ("gateway",)
"""Values for Option.commands. By default, only serve has an option."""
PORTS = (0, 65535)

if TYPE_CHECKING:
    from pydantic import BaseModel as Declared
    from pydantic import SecretStr as Secret
else:

    class Declared:
        """The base of the options classes. A type checker sees a pydantic model, because the settings are models."""

    class Secret:
        """Stands for pydantic's SecretStr. Importing pydantic would make --help three times slower."""

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            """Return the schema of SecretStr."""
            from pydantic import SecretStr

            return handler.generate_schema(SecretStr)


@dataclass(frozen=True, slots=True)
class Option:
    """Describes a field of an options class. Pydantic reads its bounds and checks as grouped metadata."""

    __is_annotated_types_grouped_metadata__ = True

    group: str
    """The heading in --help and in docs/settings.md."""
    usage: str
    """The flags and the placeholder, as --help shows them: `-p, --http-port PORT`.

    A switch has no placeholder. An option without a flag, which has only a variable, has an empty usage.
    """
    help: str
    commands: tuple[str, ...] = ("serve",)
    bounds: tuple[float, float] | None = None
    """The least and the greatest value."""
    check: Callable[[str], str] | None = None
    """Raises ValueError for a bad value. It is called for each value of a list."""
    lines: bool = False
    """Whether the text of the value holds several values, one on each line. The flag can then be repeated."""
    default: str | None = None
    """A text to show instead of the default."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the option. The long flag is the last one."""
        return tuple(word.rstrip(",") for word in self.usage.split() if word.startswith("-"))

    @property
    def metavar(self) -> str:
        """The placeholder of the value; empty for a switch."""
        return "".join(word for word in self.usage.split() if not word.startswith("-"))

    def __iter__(self) -> Iterator[Any]:
        """Yield the constraints for pydantic."""
        from annotated_types import Ge, Le
        from pydantic import AfterValidator

        if self.bounds is not None:
            yield Ge(self.bounds[0])
            yield Le(self.bounds[1])
        if self.check is not None:
            yield AfterValidator(_each(self.check))


def _each(check: Callable[[str], str]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        return tuple(map(check, value)) if isinstance(value, tuple) else check(value) if value else value

    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An option with the name, the type and the default of its field."""

    part: str
    """The part of the settings that has the option: server or client."""
    name: str
    option: Option
    kind: type
    """str, int, float, bool, Path, Secret, or tuple for a list."""
    value: Any

    @property
    def variable(self) -> str:
        """The environment variable of the option."""
        return f"{PREFIX}{self.part}_{self.name}".upper()

    @property
    def key(self) -> str:
        """The name of the option among the parameters of a command."""
        return f"{self.part}_{self.name}"

    @property
    def switch(self) -> bool:
        """Whether the option is a switch, whose flag takes no value."""
        return self.kind is bool

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags of the option. The last flag of a switch is the flag that switches it off."""
        if not self.switch or not self.option.flags:
            return self.option.flags
        return (*self.option.flags, self.off)

    @property
    def off(self) -> str:
        """The flag that switches the option off: --no-NAME for --NAME, and --NAME for --no-NAME.

        With this flag, the command line can override a variable.
        """
        long = self.option.flags[-1]
        return f"--{long.removeprefix('--no-')}" if long.startswith("--no-") else f"--no-{long[2:]}"

    @property
    def several(self) -> bool:
        """Whether the flag can be repeated."""
        return self.kind is tuple or self.option.lines

    @property
    def bounds(self) -> str:
        """The bounds as text; empty without bounds."""
        return " to ".join(map(_plain, self.option.bounds or ()))

    @property
    def default(self) -> str:
        """The default as text; empty without a default."""
        if self.option.default is not None:
            return self.option.default
        if self.switch:
            return "on" if self.value else "off"
        return "" if self.value is None or self.value == () or self.value == "" else _plain(self.value)


def fields_of(part: str, options: type) -> tuple[Field, ...]:
    """Return the fields that an options class declares, in their order."""
    found = []
    for name, annotation in inspect.get_annotations(options).items():
        of, option = get_args(annotation)
        kinds = [kind for kind in get_args(of) or (of,) if kind is not type(None)]
        kind = get_origin(of) if get_origin(of) is tuple else kinds[0]
        found.append(Field(part=part, name=name, option=option, kind=kind, value=getattr(options, name)))
    return tuple(found)


def host_port(text: str) -> str:
    """Return a HOST:PORT unchanged. Raises ValueError for any other text."""
    split_host_port(text)
    return text


def split_host_port(text: str) -> tuple[str, int]:
    """Return the two parts of HOST:PORT. Raises ValueError."""
    if "@" in text:
        raise ValueError("an address with @ is not HOST:PORT; give a token as an option of its own")
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f"{text} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _plain(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
