"""Checks values of a configuration. The errors name the field."""

from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.jsontext import is_finite


def check_count(field: str, value: Any) -> None:
    """Raise InvalidArgument for a value that is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(field, f"{value!r} is not a whole number of at least 1")


def check_temperature(field: str, value: Any) -> None:
    """Raise InvalidArgument for a value that is not a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value) or value < 0:
        raise InvalidArgument(field, f"{value!r} is not a number of at least 0")


def check_flag(field: str, value: Any) -> None:
    """Raise InvalidArgument for a value that is not true or false."""
    if not isinstance(value, bool):
        raise InvalidArgument(field, f"{value!r} is not true or false")


def check_text(field: str, value: Any) -> None:
    """Raise InvalidArgument for a value that is not a text with a visible character."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(field, f"{value!r} is not a text")


def check_objects(field: str, value: Any) -> None:
    """Raise InvalidArgument for a value that is not an object of objects: name to options."""
    if not isinstance(value, dict):
        raise InvalidArgument(field, f"is a {type(value).__name__}, not an object of names and options")
    for name, options in value.items():
        if not isinstance(name, str):
            raise InvalidArgument(field, f"{name!r} is not a name")
        if not isinstance(options, dict):
            raise InvalidArgument(f"{field}.{name}", f"is a {type(options).__name__}, not an object of options")
