"""Fills the variables of a case: `${name}` in any text of it.

A text that is only a variable becomes the variable's value. `${repeat TEXT N}` in a text repeats a text, for long
values; N is a number or a variable. `{$numbered: {count: N, value: V}}` is an object with the keys x0, x1 and so on.
"""

import re
from collections.abc import Mapping
from typing import Any

from osmosis_grpc.testing.conformance.protobuf_data import CaseError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_REPEAT = re.compile(r"\$\{repeat (\S+) (\w+)\}")


def filled(data: Any, values: Mapping[str, Any]) -> Any:
    """Return `data` with the values of its variables. Raises CaseError for a variable without a value."""
    if isinstance(data, Mapping):
        if data.keys() == {"$numbered"}:
            many = data["$numbered"]
            return {f"x{number}": filled(many["value"], values) for number in range(many["count"])}
        return {filled(key, values): filled(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [filled(each, values) for each in data]
    if not isinstance(data, str) or "${" not in data:
        return data
    whole = _VARIABLE.fullmatch(data)
    if whole:
        return _value(whole[1], values)
    text = _REPEAT.sub(lambda match: match[1] * int(match[2] if match[2].isdigit() else _value(match[2], values)), data)
    return _VARIABLE.sub(lambda match: str(_value(match[1], values)), text)


def _value(name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise CaseError(f"there is no variable {name}; there are {', '.join(sorted(values))}")
    return values[name]
