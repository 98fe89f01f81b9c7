"""Looks a name up in a front door's table: {module: names}."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.renamed import missing_name
from osmosis_grpc.errors import MissingExtraError

_OF_THE_SERVER = ("osmosis_gateway.", "osmosis_grpc.settings")


def lookup(door: str, table: Mapping[str, Sequence[str]], name: str) -> Any:
    """Returns the object behind a name.

    Raises AttributeError for an unknown name, ImportError for a name of another library that is not built yet, and
    MissingExtraError, an ImportError, that names the extra. `from ... import` shows the text of an ImportError only.
    """
    module = next((module for module, names in table.items() if name in names), None)
    if module is None:
        sentence = missing_name(name)
        if sentence is not None:
            raise ImportError(sentence, name=door)
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if module.startswith(_OF_THE_SERVER) and not str(error.name).startswith("osmosis"):
            raise MissingExtraError(f"{door}.{name}", "server") from error
        raise
