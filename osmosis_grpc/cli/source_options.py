"""Declares the options that say where rollouts are: a running server or a state folder. Imports only typer."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where a command finds rollouts, and its credentials. Each field is an option of the command line."""

    server: Annotated[
        str | None, typer.Option("--server", metavar="HOST:PORT", help="Ask this running server.", show_default=False)
    ] = None
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Read this state folder; a server may be using it. "
            "Default: ./.osmosis/state if it has a journal, else the server 127.0.0.1:50051.",
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="SECRET", help="Token to show to the server. Prefer the file or the variable."),
    ] = None
    token_file: Annotated[str | None, typer.Option("--token-file", metavar="FILE", help="File that holds --token.")] = (
        None
    )
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS with the server.")] = False
    ca: Annotated[str | None, typer.Option("--ca", metavar="FILE", help="CA of the server; implies --tls.")] = None
    cert: Annotated[
        str | None, typer.Option("--cert", metavar="FILE", help="Certificate to show to the server; implies --tls.")
    ] = None
    key: Annotated[str | None, typer.Option("--key", metavar="FILE", help="The private key of --cert.")] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Send the token to another machine without TLS.")] = False


def with_source(function: Callable[..., None], *, without: tuple[str, ...] = ()) -> Callable[..., None]:
    """Return the command with the options of SourceOptions. The function gets them as its parameter `source`.

    The command does not have the options of the fields that `without` names.
    """
    names = [field.name for field in fields(SourceOptions) if field.name not in without]
    hints = inspect.get_annotations(SourceOptions)

    @functools.wraps(function)
    def called(**values: Any) -> None:
        source = SourceOptions(**{name: values.pop(name) for name in names})
        function(**values, source=source)

    own = [each for each in inspect.signature(function).parameters.values() if each.name != "source"]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(SourceOptions)
        if field.name in names
    ]
    del called.__wrapped__
    called.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, *more)} | {"return": None}
    return called


def with_server(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of SourceOptions that name a running server."""
    return with_source(function, without=("state_dir",))


def with_credentials(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of SourceOptions that are credentials for a server."""
    return with_source(function, without=("server", "state_dir"))
