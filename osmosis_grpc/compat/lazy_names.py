"""Imports each name of a module when the name is first used. The module's .pyi file lists the names."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_grpc.compat.missing_names import missing_name
from osmosis_grpc.protocol.errors import MissingExtraError

_NEEDS_SERVER_EXTRA = ("osmosis_gateway.", "osmosis_grpc.settings.settings")


def attach(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a module's `__getattr__`, `__dir__` and `__all__`, from the imports in the .pyi file beside it."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    sources = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
    names = sorted(sources)

    def getattribute(name: str) -> Any:
        # `from ... import` shows the texts of ImportError and of MissingExtraError
        source, real_name = sources.get(name, ("", ""))
        if not source:
            sentence = missing_name(name, module)
            if sentence is not None:
                raise ImportError(sentence, name=module)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(source), real_name)
        except ModuleNotFoundError as error:
            if source.startswith(_NEEDS_SERVER_EXTRA) and not str(error.name).startswith("osmosis"):
                raise MissingExtraError(f"{module}.{name}", "server") from error
            raise

    return getattribute, lambda: names, names
