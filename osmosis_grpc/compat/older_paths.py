"""The import paths and names of two older systems, and a finder that makes their modules.

`older_names.json` has the public names of the Osmosis SDK and of the Agentic Rollout Library, by version and module, as
scripts/older_names.py recorded them. A name works if `rollout/__init__.pyi`, `agentic/__init__.pyi` or BELOW says where
it is now. Any other recorded name raises an ImportError that says what to use instead of the name or its module.
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
"""The modules of names that the facade `rollout` lacks, or has with another meaning."""
ALSO = {
    "rollout.tools": ("ToolArgumentError", "ToolExecutionError"),
    "rollout.types": ("GraderStatus",),
    "rollout.core.schemas": ("DEFAULT_MAX_METADATA_SIZE_BYTES", "MessageDict", "SamplingParamsDict"),
    "rollout.registry": ("AgentLoopNotFoundError",),
    "rollout.context": ("RolloutSample",),
    "rollout.grader": ("GraderContext",),
    "rollout.validator": ("validate_workflow",),
}
"""Names that modules of the SDK import but do not list as public."""
_FACADES = ("rollout", "agentic")
_NEEDS_SERVER_EXTRA = ("osmosis_gateway.", "osmosis_grpc.settings.settings")


@cache
def recorded(system: str = "sdk") -> Mapping[str, frozenset[str]]:
    """Return the names of a system by module, over all its versions."""
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
    """Map each name of `rollout` or `agentic` to its source: the module, and the name in it."""
    stub = ast.parse((Path(__file__).parents[1] / package / "__init__.pyi").read_text())
    return {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }


def source_of(module: str, name: str) -> tuple[str, str] | None:
    """Return the module and the name that now provide a name; None if nothing does. `module` omits the package."""
    below = BELOW.get(f"{module}.{name}")
    if below is not None:
        return below, name
    if module in _FACADES:
        return facade(module).get(name)
    return facade().get(name) if name in recorded().get(module, ()) else None


def sentence_of(module: str, name: str, shown: str) -> str | None:
    """Return what to use instead of a name that `shown` lacks; None if no older system has the name."""
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
    """Return the variables of a module that imports its names when they are first used."""
    names = names_of(module)
    return {"__getattr__": lambda wanted: get(module, wanted), "__dir__": lambda: names, "__all__": names}


def get(module: str, name: str) -> Any:
    """Return the object of a name. `from ... import` shows the messages of these errors.

    Raises:
        ImportError: The name has no object here. The message says what to use instead.
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
    """Makes the modules below `rollout` and `eval`. They import their names when they are first used."""

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
    """Make the modules of the older systems importable. The finder goes first because their folders have only stubs."""
    if not any(isinstance(finder, OlderModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OlderModules())
