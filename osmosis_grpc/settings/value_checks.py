"""Checks for options whose values have a certain form: each returns the text unchanged, or raises ValueError."""

import re
import shlex
from collections.abc import Callable

from osmosis_grpc.settings.compound_values import commands_of, sampling_parameter


def like(pattern: str, form: str) -> Callable[[str], str]:
    """Return a check that a whole value matches a pattern. `form` describes the pattern in errors."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ValueError(f"{text!r} is not {form}")
        return text

    return check


def sampling(text: str) -> str:
    """Return a sampling parameter unchanged. Raises ValueError."""
    sampling_parameter(text)
    return text


def resource(text: str) -> str:
    """Return an amount of a resource of Ray unchanged. Raises ValueError."""
    name, _, amount = text.partition("=")
    try:
        if name and float(amount) > 0:
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not NAME=AMOUNT with an amount above 0, for example CPU=0.5")


def commands(text: str) -> str:
    """Return commands unchanged, one on each line. Raises ValueError for a command with an open quote."""
    for line in commands_of(text):
        try:
            shlex.split(line)
        except ValueError as error:
            raise ValueError(f"{line!r} cannot be split: {error}") from None
    return text


def box(text: str) -> str:
    """Return an image for programs unchanged. Raises ValueError."""
    kind, _, image = text.partition(":")
    if kind != "docker" or not image:
        raise ValueError(f"{text!r} is not docker:IMAGE")
    return text
