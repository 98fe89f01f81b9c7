"""Declares options of commands, singly or as a group, which is a dataclass. Imports only typer."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

Command = Callable[..., None]


def option(usage: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Return the default of a command's parameter that is an option.

    Args:
        usage: The flags and the placeholder, as `-o, --output FILE`. A switch has no placeholder.
        help: The text in --help.
        default: The default; `...` for an option that has to be given.
        more: Further arguments of typer.Option.
    """
    words = usage.split()
    flags = [word.rstrip(",") for word in words if word.startswith("-")]
    metavar = " ".join(word for word in words if not word.startswith("-"))
    return typer.Option(default, *flags, metavar=metavar or None, help=help, **more)


def argument(metavar: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Return the default of a command's parameter that is an argument. See option()."""
    return typer.Argument(default, metavar=metavar, help=help, **more)


def choice(usage: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002
    """Return a field of a dataclass that is an option. See option(). With a tuple as default, it can be repeated."""
    declared = option(usage, help, None if default == () else default, **more)
    return dataclasses.field(default=default, metadata={"option": declared})


def with_options(kind: type, name: str, *, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each field of the dataclass `kind`.

    The function gets the options as its parameter `name`. They are in --help at the place of this parameter. The
    command does not have the options of the fields that `without` names.
    """
    hints = {each: hint for base in kind.__mro__ for each, hint in inspect.get_annotations(base).items()}
    declared = {field.name: field for field in dataclasses.fields(kind)}
    fields = {each: declared[each] for each in hints if each not in without}  # those of a base are the last ones
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
