"""Settings, from the environment and other sources. Only this module and process_environment.py read the environment.

server_options.py and client_options.py declare the fields, with defaults, bounds and help. The first of these sources
wins: code or command line, environment, file .env, default. A wrong value raises pydantic's ValidationError; problems()
names the option or the variable that the value came from.
"""

import difflib
import reprlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from osmosis_grpc.settings.client_options import ClientOptions
from osmosis_grpc.settings.command_line import OPTIONS, Line, OptionError, field_of
from osmosis_grpc.settings.option import PREFIX, Option, Secret
from osmosis_grpc.settings.server_options import ServerOptions


def _config(part: str) -> SettingsConfigDict:
    return SettingsConfigDict(
        env_prefix=f"{PREFIX}{part}_", env_file=".env", extra="ignore", hide_input_in_errors=True, enable_decoding=False
    )


class _Part(BaseSettings):
    """The base of both parts. Parses the texts of variables: blanks separate a list, and an empty value is an error."""

    part: ClassVar[str]

    @field_validator("*", mode="before")
    @classmethod
    def _text(cls, value: Any, info: ValidationInfo) -> Any:
        option = cls.option(str(info.field_name))
        if option.kind is tuple and isinstance(value, str):
            value = tuple(value.split()) or ("",)
        if option.kind is not Secret and (value == "" or (isinstance(value, list | tuple) and "" in value)):
            raise ValueError("is empty: give it a value, or unset it")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _allowed(cls, value: Any, info: ValidationInfo) -> Any:
        option = cls.option(str(info.field_name))
        if isinstance(value, SecretStr):
            _check((_lines(value) or [""]) if option.lines else [value.get_secret_value()])
            return value
        return option.checked(value)

    @classmethod
    def option(cls, name: str) -> Option:
        """Return the declaration of a setting."""
        return OPTIONS[f"{cls.model_config['env_prefix']}{name}".upper()]

    def secrets(self, name: str) -> tuple[str, ...]:
        """Return the values of a secret: those of its option or variable, and those of its file, one on each line.

        Raises OptionError.
        """
        secret: SecretStr | None = getattr(self, name)
        path: Path | None = getattr(self, f"{name}_file")
        texts = _lines(secret) if secret is not None else []
        if path is None:
            return tuple(texts)
        try:
            kept = _lines(SecretStr(path.read_text()))
            _check(kept or [""])
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            file = field_of(self.option(f"{name}_file"))
            raise OptionError(f"{{{file}}}: {{path}} cannot be used: {{why}}", path=path, why=why) from None
        return (*texts, *kept)

    def secret(self, name: str) -> str:
        """Return a single secret; empty if there is none. Raises OptionError."""
        secrets = self.secrets(name)
        if len(secrets) > 1:
            file = field_of(self.option(f"{name}_file"))
            raise OptionError(f"{{{file}}}: there is more than one token; give one, in the file or without it")
        return secrets[0] if secrets else ""


class RolloutClientSettings(ClientOptions, _Part):
    """The HTTP gateway's calls to a trainer: OSMOSIS_ROLLOUT_CLIENT_*. Times are in seconds."""

    model_config = _config("CLIENT")


class RolloutServerSettings(ServerOptions, _Part):
    """A server's agent loops, addresses and limits: OSMOSIS_ROLLOUT_SERVER_*."""

    model_config = _config("SERVER")

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return the accepted tokens, SECRET or NAME=SECRET; none with `local`. Raises OptionError."""
        return () if self.local else self.secrets("token")

    @property
    def state_folder(self) -> Path | None:
        """Return the folder of the journal; None without a journal."""
        return None if self.no_journal or self.state_dir == ":memory:" else Path(self.state_dir)


class RolloutSettings(BaseSettings):
    """All settings. Both parts read the environment, each with its own prefix."""

    model_config = SettingsConfigDict(hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the source of values given in code; only the parts read the environment."""
        return (init_settings,)

    client: RolloutClientSettings = Field(default_factory=RolloutClientSettings)
    server: RolloutServerSettings = Field(default_factory=RolloutServerSettings)


_FAMILY = "OSMOSIS_"
"""The prefix of all variables of this project and of the Osmosis SDK."""

_configured: RolloutSettings | None = None


def get_settings() -> RolloutSettings:
    """Return the settings that configure() set; otherwise the settings of the environment and .env."""
    return _configured or RolloutSettings()


def configure(settings: RolloutSettings) -> None:
    """Set the settings of this process. Running servers keep their own."""
    global _configured
    _configured = settings


def reset_settings() -> None:
    """Undo configure."""
    global _configured
    _configured = None


def command_settings(line: Line) -> RolloutSettings:
    """Return the settings of a command from its line, the environment, .env and the TOML file of --config.

    Raises OptionError.
    """
    server = dict(line.given["server"])
    added = {name: server.pop(name) for name in (*_TOKENS, *_KEY_VALUES) if name in server}
    try:
        known = RolloutServerSettings(**server)
        server = _from_file(known, known.config_file, line) | server
        known = RolloutServerSettings(**server)
        for name, given in added.items():  # the line adds to the values of the other sources
            before: Any = getattr(known, name)
            if name in _KEY_VALUES:
                server[name] = (*before, *given)
            else:
                server[name] = SecretStr("\n".join((*(_lines(before) if before is not None else ()), given)))
        known = RolloutServerSettings(**server)
        client = line.given["client"]
        client = _from_file(RolloutClientSettings(**client), known.config_file, line) | client
        return RolloutSettings(server=known, client=RolloutClientSettings(**client))
    except ValidationError as error:
        raise OptionError("{problems}", problems=problems(error, line)) from None
    except ValueError as error:  # from the TOML file
        raise OptionError("{error}", error=error) from None


_TOKENS = ("token", "admin_token")
_KEY_VALUES = ("workflow_config", "grader_config", "pin_sampling")


def _from_file(known: _Part, path: Path | None, line: Line) -> dict[str, Any]:
    """Return the values of a part's table in a file, except those that are set elsewhere. Raises ValueError."""
    if path is None:
        return {}
    values = {name: value for name, value in _table(path, known).items() if name not in known.model_fields_set}
    line.in_file |= _places(path, known, values)
    return values


def _table(path: Path, part: _Part | type[_Part]) -> dict[str, Any]:
    """Return the values of the table [server] or [client] of a TOML file, by the names of the settings.

    Raises ValueError for an unknown key and for a secret.
    """
    from osmosis_grpc.agent.workflow_toml import WorkflowToml

    values = getattr(WorkflowToml.read(path), part.part)
    options = {option.name: option for option in OPTIONS.values() if option.part == part.part}
    for name in values:
        if name not in options or name == "config_file":
            nearest = difflib.get_close_matches(name, options, 1)
            hint = f"; is {nearest[0]} meant?" if nearest else "; docs/settings.md lists the keys"
            raise ValueError(f"{path}: [{part.part}] has the unknown key {name}{hint}")
        if options[name].kind is Secret:
            raise ValueError(f"{path}: [{part.part}] {name} is a secret; name its file with {name}_file")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _places(path: Path, part: _Part | type[_Part], values: Iterable[str]) -> dict[str, str]:
    return {part.option(name).variable: f"{path}: [{part.part}] {name}" for name in values}


def check_tables(path: Path) -> None:
    """Raise ValueError if a table of settings in a TOML file has an unknown key, a secret or a wrong value."""
    for part in (RolloutServerSettings, RolloutClientSettings):
        values = _table(path, part)
        try:
            part(**values)
        except ValidationError as error:
            raise ValueError(problems(error, in_file=_places(path, part, values))) from None


def option_names(line: Line, settings: RolloutSettings | None) -> dict[str, str]:
    """Return the name under which to show each option, by its field in an OptionError.

    The name tells where the value came from: a variable, or a place in a file. Otherwise it is the flag.
    """
    names = {}
    for variable, option in OPTIONS.items():
        elsewhere = settings is not None and option.name in getattr(settings, option.part).model_fields_set
        from_line = not elsewhere or line.has(option.part, option.name)
        names[field_of(option)] = option.flag if option.flag and from_line else line.in_file.get(variable, variable)
    return names


def shown_secrets(line: Line) -> list[tuple[str, str]]:
    """Return two flags for each secret on a command line: its own, and the one of the file that may hold it instead."""
    return [
        (option.flag, OPTIONS[f"{option.variable}_FILE"].flag)
        for option in OPTIONS.values()
        if option.kind is Secret and line.has(option.part, option.name)
    ]


def readable_secrets(settings: RolloutSettings) -> Iterator[Path]:
    """Yield each file of tokens or of a private key that every user of this machine can read."""
    named = [getattr(getattr(settings, option.part), option.name) for option in OPTIONS.values() if _is_secret(option)]
    secrets = {variable.lower() for variable, option in OPTIONS.items() if option.kind is Secret}
    if secrets & {name.lower() for name in DotEnvSettingsSource(RolloutServerSettings).env_vars}:
        named.append(Path(".env"))
    for path in dict.fromkeys(filter(None, named)):
        with suppress(OSError):  # a missing file is an error elsewhere
            full = path.resolve(strict=True)
            if full.stat().st_mode & stat.S_IROTH and all(each.stat().st_mode & stat.S_IXOTH for each in full.parents):
                yield path


def _is_secret(option: Option) -> bool:
    """Return whether an option names a file with tokens or a private key."""
    token = OPTIONS.get(option.variable.removesuffix("_FILE"))
    return (token is not None and token.kind is Secret and token is not option) or option.name.endswith("key")


def unknown_variables() -> Iterator[tuple[str, str]]:
    """Yield each unknown variable with our prefix in the environment and .env, with the most similar known name.

    The name is empty if none is similar. A variable with a misspelt prefix is yielded only if a known name is very
    similar, because variables of other projects begin with OSMOSIS_, too.
    """
    here = {**DotEnvSettingsSource(RolloutServerSettings).env_vars, **EnvSettingsSource(RolloutServerSettings).env_vars}
    for name in sorted(name.upper() for name in here if name.upper().startswith(_FAMILY)):
        if name.startswith(PREFIX) and name not in OPTIONS:
            yield name, _nearest(name)
        elif not name.startswith(PREFIX):
            short = {known.replace(PREFIX, _FAMILY, 1): known for known in OPTIONS}
            for near in difflib.get_close_matches(name, [*OPTIONS, *short], 1, 0.93):
                yield name, short.get(near, near)


def _nearest(name: str) -> str:
    """Return the most similar known variable, compared first by the part after SERVER_ or CLIENT_; empty for none."""

    def likeness(known: str) -> tuple[float, float]:
        (part, _, rest), (given, _, tail) = (each.removeprefix(PREFIX).partition("_") for each in (known, name))
        return difflib.SequenceMatcher(None, rest, tail).ratio(), difflib.SequenceMatcher(None, part, given).ratio()

    nearest = max(OPTIONS, key=likeness)
    return nearest if likeness(nearest)[0] >= 0.5 else ""


def problems(error: ValidationError, line: Line | None = None, in_file: Mapping[str, str] | None = None) -> str:
    """Return the problems as one text. Each names the source of the value: its flag, place in a file, or variable."""
    part = _PARTS.get(error.title, "")
    in_file = in_file or (line.in_file if line is not None else {})
    rows = []
    for row in error.errors():
        name = str(row["loc"][0]) if row["loc"] else ""
        option = OPTIONS.get(f"{PREFIX}{part}_{name}".upper())
        shown = name if option is None else option.variable
        if option is not None and line is not None and line.has(part, name):
            shown = option.flag
        elif option is not None:
            shown = in_file.get(shown, shown)
        rows.append(f"{shown}: {_plain(row)}")
    return "; ".join(rows)


_KINDS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "int_parsing_size": "a whole number of a sensible size",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
"""The expected kind of value, by pydantic's type of error."""


def _plain(row: Any) -> str:
    """Return the problem of a value in plain words, with the value if it is a number or a switch."""
    kind, value = row["type"], reprlib.repr(row["input"])
    if kind in _KINDS:
        return f"{value} is not {_KINDS[kind]}"
    return str(row["msg"]).removeprefix("Value error, ")


def _lines(tokens: SecretStr) -> list[str]:
    return [text for text in tokens.get_secret_value().split("\n") if text]


def _check(tokens: list[str]) -> None:
    for text in tokens:
        if not text or not text.isascii() or not text.isprintable() or text != text.strip():
            raise ValueError("a token is printable ASCII without blanks around it, and not empty")


_PARTS = {RolloutClientSettings.__name__: "client", RolloutServerSettings.__name__: "server"}
