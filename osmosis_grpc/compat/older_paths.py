"""The import paths and the names of two older systems: one table, and a finder that makes their modules.

`older_names.json` has the public names of the Osmosis SDK and of the Agentic Rollout Library, by version and module, as
scripts/older_names.py recorded them. A name works if `rollout/__init__.pyi`, `agentic/__init__.pyi` or BELOW says where
it is here. Every other one raises an ImportError with a sentence: the one of the name, or else that of its module.
"""

import ast
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_grpc.compat.older_sentences import BY_MODULE, INSTEAD, LIBRARY
from osmosis_grpc.protocol.errors import MissingExtraError

PACKAGE = "osmosis_grpc"
ROLLOUT = f"{PACKAGE}.rollout"
BELOW = {
    f"{module}.{name}": place
    for module, place, names in (
        ("rollout.testing", "osmosis_gateway.mock_trainer", "fake_prompt_token_ids fake_token_ids"),
        ("rollout.backend.harbor", "osmosis_grpc.compat.backends", "HarborBackend TaskMode"),
        (
            "rollout.server.api_key",
            "osmosis_grpc.compat.sdk_functions",
            "API_KEY_PREFIX generate_api_key validate_api_key",
        ),
        ("rollout.validator", "osmosis_grpc.compat.sdk_validation", "validate_backend"),
        ("rollout.types", "osmosis_grpc.compat.sdk_schemas", "Messages"),
        (
            "rollout.integrations.agents.openai_agents",
            "osmosis_grpc.compat.openai_agents",
            "OsmosisAgent OsmosisLitellmModel OsmosisMemorySession OsmosisRolloutModel SessionSampleSource",
        ),
    )
    for name in names.split()
}
"""Where names are that the facade `rollout` does not have, or has as something else."""
ALSO = {
    "rollout.tools": ("ToolArgumentError", "ToolExecutionError"),
    "rollout.types": ("GraderStatus",),
    "rollout.core.schemas": ("DEFAULT_MAX_METADATA_SIZE_BYTES", "MessageDict", "SamplingParamsDict"),
    "rollout.registry": ("AgentLoopNotFoundError",),
    "rollout.context": ("RolloutSample",),
    "rollout.grader": ("GraderContext",),
    "rollout.validator": ("validate_workflow",),
}
"""Names that modules have without promising them, because they import them."""
_FACADES = ("rollout", "agentic")
_NEEDS_SERVER_EXTRA = ("osmosis_gateway.", "osmosis_grpc.settings.settings")


@cache
def recorded(system: str = "sdk") -> Mapping[str, frozenset[str]]:
    """Return the names of all versions of a system, by module."""
    found: dict[str, set[str]] = {}
    for modules in json.loads(Path(__file__).with_name("older_names.json").read_text())[system].values():
        for module, names in modules.items():
            found.setdefault(module, set()).update(names.split())
    if system == "sdk":
        for module, also in ALSO.items():
            found[module].update(also)
    return {module: frozenset(names) for module, names in found.items()}


@cache
def facade(package: str = "rollout") -> Mapping[str, tuple[str, str]]:
    """Return where each name of `rollout` or of `agentic` comes from: the module, and the name there."""
    stub = ast.parse((Path(__file__).parents[1] / package / "__init__.pyi").read_text())
    return {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }


def source_of(module: str, name: str) -> tuple[str, str] | None:
    """Return where a name of a module is here; None if it is nowhere. `module` is without the package's name."""
    below = BELOW.get(f"{module}.{name}")
    if below is not None:
        return below, name
    if module in _FACADES:
        return facade(module).get(name)
    return facade().get(name) if name in recorded().get(module, ()) else None


def sentence_of(module: str, name: str, shown: str) -> str | None:
    """Return the sentence for a name that `shown` does not have; None for one that no older system has."""
    text = (LIBRARY if module == "agentic" else INSTEAD).get(name)
    if text is None and name in recorded().get(module, ()):
        parts = module.split(".")
        places = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        text = next((BY_MODULE[place] for place in places if place in BY_MODULE), None)
    return None if text is None else f"{name} is not in {shown}: {text.replace('NAME', name)}"


def names_of(module: str) -> list[str]:
    """Return the names of a module that work here."""
    if module in _FACADES:
        return sorted(facade(module))
    return sorted(name for name in recorded().get(module, ()) if source_of(module, name))


def contents(module: str) -> dict[str, Any]:
    """Return the variables of a module whose names are imported when they are first used."""
    names = names_of(module)
    return {"__getattr__": lambda wanted: get(module, wanted), "__dir__": lambda: names, "__all__": names}


def get(module: str, name: str) -> Any:
    """Return the object of a name. `from ... import` shows the texts of these errors.

    Raises:
        ImportError: The name has no object here. The text says what to write instead.
        MissingExtraError: An extra is missing.
        AttributeError: No older system has the name.
    """
    shown = f"{PACKAGE}.{module}"
    source = source_of(module, name)
    if source is None:
        sentence = None if name.startswith("_") else sentence_of(module, name, shown)
        if sentence is not None:
            raise ImportError(sentence, name=shown)
        raise AttributeError(f"module {shown!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(source[0]), source[1])
    except ModuleNotFoundError as error:
        if source[0].startswith(_NEEDS_SERVER_EXTRA) and not str(error.name).startswith("osmosis"):
            raise MissingExtraError(f"{shown}.{name}", "server") from error
        raise


class OlderModules(MetaPathFinder, Loader):
    """Makes the modules below `rollout` and `eval`, whose names are imported when they are first used."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of an older system; None for any other module."""
        name = fullname.removeprefix(f"{PACKAGE}.")
        modules = recorded()
        inner = any(module.startswith(f"{name}.") for module in modules)
        if name == "rollout" or (name not in modules and not inner):
            return None
        return ModuleSpec(fullname, self, is_package=inner)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        name = module.__name__.removeprefix(f"{PACKAGE}.")
        module.__doc__ = f"The Osmosis SDK's osmosis_ai.{name}."
        module.__dict__.update(contents(name), __path__=[])


def install() -> None:
    """Let the modules of the older systems be imported. The folders below have stubs only, so the finder is first."""
    if not any(isinstance(finder, OlderModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderModules())
