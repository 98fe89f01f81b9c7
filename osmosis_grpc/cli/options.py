"""The options of commands, singly and in groups that several commands share. Imports only typer.

A group is a dataclass, and each of its fields is an option of the command line.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from osmosis_grpc.agent.config_sources import ConfigSources
    from osmosis_grpc.records.reading.list_filter import ListOptions

Command = Callable[..., None]
Attempt = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="Which attempt. Default: the newest.")
]
NAME = "Its id, the number of its row, or the beginning of its id."
"""How a user can name a rollout. See osmosis_grpc.cli.recorded.named()."""
Json = Annotated[bool, typer.Option("--json", help="Only JSON records on stdout.")]


def option(usage: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Declare an option of a command. Use the return value as the default of the function's parameter.

    Args:
        usage: The flags and the placeholder, such as `-o, --output FILE`. A switch has no placeholder.
        help: The text in --help.
        default: The default; `...` for a required option.
        more: Further arguments of typer.Option.
    """
    words = usage.split()
    flags = [word.rstrip(",") for word in words if word.startswith("-")]
    metavar = " ".join(word for word in words if not word.startswith("-"))
    return typer.Option(default, *flags, metavar=metavar or None, help=help, **more)


def argument(metavar: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Declare an argument of a command. See option()."""
    return typer.Argument(default, metavar=metavar.strip(), help=help, **more)


def choice(usage: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Declare a dataclass field that is an option, or an argument if `usage` begins with no flag. See option().

    If the default is an empty tuple, the option can be repeated.
    """
    declare = option if usage.startswith("-") else argument
    declared = declare(usage, help, None if default == () else default, **more)
    default = dataclasses.MISSING if default is ... else default
    return dataclasses.field(default=default, metadata={"option": declared})


def with_options(kind: type, name: str, *, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return a decorator that adds one option to a command for each field of the dataclass `kind`.

    The function gets the options as its parameter `name`, and --help lists them at the place of this parameter. Fields
    in `without` do not become options.
    """
    hints = {each: hint for base in kind.__mro__ for each, hint in inspect.get_annotations(base).items()}
    declared = {field.name: field for field in dataclasses.fields(kind)}
    fields = {each: declared[each] for each in hints if each not in without}  # fields of a base class come last
    keyword = inspect.Parameter.KEYWORD_ONLY
    group = []
    for field in fields.values():
        hint = list[str] | None if field.default == () else hints[field.name]
        group.append(inspect.Parameter(field.name, keyword, default=field.metadata["option"], annotation=hint))

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def called(**values: Any) -> None:
            given = {each: values.pop(each) for each in fields}
            lists = {each: tuple(given[each] or ()) for each, field in fields.items() if field.default == ()}
            function(**values, **{name: kind(**given | lists)})

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(function).parameters.values():
            parameters += group if each.name == name else [each.replace(kind=keyword)]
        del called.__wrapped__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        return called

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where a command finds rollouts, and with which credentials. Each field is an option of the command line."""

    server: str | None = choice("--server HOST:PORT", "Call this running server.", show_default=False)
    where: str | None = choice(
        "--from WHERE",
        "A run (last, or the beginning of its name), a folder, or a server HOST:PORT. "
        "Default: the newest of ./.osmosis, else the server 127.0.0.1:50051.",
        show_default=False,
    )
    token: str | None = choice("--token SECRET", "Token to send to the server. Prefer a file or the variable.")
    token_file: str | None = choice("--token-file FILE", "File that holds --token.")
    tls: bool = choice("--tls", "Use TLS with the server.", False)
    ca: str | None = choice("--ca FILE", "CA of the server; implies --tls.")
    cert: str | None = choice("--cert FILE", "Certificate to send to the server; implies --tls.")
    key: str | None = choice("--key FILE", "The private key of --cert.")
    insecure: bool = choice("--insecure", "Send the token to another machine without TLS.", False)


with_source = with_options(SourceOptions, "source", without=("server",))
"""Adds the options that name a source of rollouts to a command. The function gets them as its parameter `source`."""
with_server = with_options(SourceOptions, "source", without=("where",))
"""Adds the options that name a running server to a command."""
with_view_source = with_options(SourceOptions, "source", without=("server", "token", "token_file"))
"""Adds the options of with_source except the tokens to the command view, which has token options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The options that select rollouts. Each field is an option of the command line."""

    states: tuple[str, ...] = choice(
        "--state STATE", "Only these states, such as running or failed; may be repeated.", ()
    )
    agent: str = choice("--agent NAME", "Only this agent loop.", "")
    group: str = choice("--group ID", "Only this group.", "")
    reasons: tuple[str, ...] = choice(
        "--reason REASON", "Only failures for these reasons, such as AGENT_EXCEPTION; repeatable.", ()
    )
    finish_reason: str = choice("--finish-reason REASON", "Only this finish reason, such as stop or length.", "")
    min_reward: float | None = choice("--min-reward X", "Only rewards of at least this.")
    max_reward: float | None = choice("--max-reward X", "Only rewards of at most this.")
    since: str | None = choice("--since TIME", "Only those accepted in the last 10m, 2h, 1d, or since @UNIX.")
    before: str | None = choice("--before TIME", "Only those accepted longer ago than 10m, 2h, 1d, or before @UNIX.")
    stalled: str | None = choice("--stalled TIME", "Only unfinished ones without progress for 5s, 10m or so.")
    undelivered: bool = choice("--undelivered", "Only those whose outcome has not reached the trainer.", False)
    forked_from: str = choice("--forked-from ID", "Only rollouts that fork from this one.", "")
    oldest: bool = choice("--oldest", "The oldest first. Default: the newest first.", False)

    def with_limit(self, limit: int) -> "ListOptions":
        """Return these options and a limit as ListOptions."""
        from osmosis_grpc.records.reading.list_filter import ListOptions

        return ListOptions(limit=limit, **asdict(self))


with_filters = with_options(FilterOptions, "filters")
"""Adds the options of FilterOptions to a command. The function gets them as its parameter `filters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSources:
    """The options --config, --workflow-config, --grader-config and --grader."""

    config: str | None = choice("--config FILE", "TOML file with [workflow.config] and [grader.config].")
    workflow_config: tuple[str, ...] = choice(
        "--workflow-config KEY=VALUE", "A value of the workflow's configuration; repeatable.", ()
    )
    grader_config: tuple[str, ...] = choice(
        "--grader-config KEY=VALUE", "A value of the grader's configuration; repeatable.", ()
    )
    grader: str | None = choice("--grader MODULE:CLASS", "The grader, instead of the one in the workflow's file.")

    def sources(self) -> "ConfigSources":
        """Return the sources of configuration that options and environment variables name. Raises LoadError."""
        from osmosis_grpc.agent.loader import LoadError
        from osmosis_grpc.serve.options import config_sources
        from osmosis_grpc.settings.settings import RolloutServerSettings, check_tables, problems

        given = {"config_file": Path(self.config)} if self.config else {}
        try:
            known = RolloutServerSettings(**given)  # type: ignore[arg-type]
            if known.config_file is not None:
                check_tables(known.config_file)
        except ValueError as error:
            raise LoadError(problems(error) if hasattr(error, "errors") else str(error)) from None  # type: ignore[arg-type]
        found = config_sources(known)
        return replace(
            found,
            workflow=self.workflow_config,
            grader=self.grader_config,
            grader_class=self.grader or found.grader_class,
            grader_class_place="--grader" if self.grader else found.grader_class_place,
        )


with_agents = with_options(AgentSources, "agents")
"""Adds the options of AgentSources to a command. The function gets them as its parameter `agents`."""
