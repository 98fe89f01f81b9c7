"""Splits the values of options that have several parts."""

import re
from typing import Any


def sampling_parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value of KEY=VALUE. A value that is not JSON is a string. Raises ValueError."""
    import json

    from osmosis_grpc.protocol.errors import InvalidArgument
    from osmosis_grpc.protocol.types.requests import own_params

    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ValueError(f"{text!r} is not KEY=VALUE")
    if re.search(r",\s*\w+=", value):
        raise ValueError(f"{text!r} has several parameters; repeat the option for each one")
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    try:
        return name, own_params({name: read}, "")[name]
    except InvalidArgument as error:
        raise ValueError(f"{text!r}: {error.violations[0][1]}") from None


def split_legacy_agent(text: str) -> tuple[str, str]:
    """Split [NAME=]URL into the name and the URL of a legacy agent. The name is empty without `NAME=`."""
    name, sep, url = text.partition("=")
    return ("", text) if not sep or "/" in name else (name, url)


def commands_of(text: str | None) -> list[str]:
    """Return the commands of the option --command, one on each line."""
    return text.removesuffix("\n").split("\n") if text else []
