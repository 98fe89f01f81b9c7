"""Adds a group of options, which is a dataclass, to a command. Imports only typer."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

Command = Callable[..., None]


def with_options(kind: type, name: str, *, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each field of the dataclass `kind`.

    The function gets the options as its parameter `name`. They are in --help at the place of this parameter. The
    command does not have the options of the fields that `without` names.
    """
    names = [field.name for field in fields(kind) if field.name not in without]
    hints = inspect.get_annotations(kind)
    keyword = inspect.Parameter.KEYWORD_ONLY
    group = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
        if field.name in names
    ]

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def called(**values: Any) -> None:
            options = kind(**{each: values.pop(each) for each in names})
            function(**values, **{name: options})

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(function).parameters.values():
            parameters += group if each.name == name else [each.replace(kind=keyword)]
        del called.__wrapped__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        return called

    return decorate
