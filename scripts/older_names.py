"""Records the public names of an older system in osmosis_grpc/compat/older_names.json.

    build/sdk/0.3.8/bin/python scripts/older_names.py sdk 0.3.8
    python3.12 scripts/older_names.py sdk 0.2.14 FOLDER_OF_A_CHECKOUT
    python3.12 scripts/older_names.py library HEAD FOLDER_OF_A_CHECKOUT

Without a folder, the package is the installed one. Nothing of it is imported. A module's names are those of its
`__all__`; those modules that the documentation names have none, and then their public classes and functions count.
"""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "osmosis_grpc" / "compat" / "older_names.json"
PACKAGES = {"sdk": "osmosis_ai", "library": "workers"}
DOCUMENTED = {
    "sdk": (
        "rollout.agent_workflow",
        "rollout.client",
        "rollout.context",
        "rollout.core",
        "rollout.grader",
        "rollout.integrations.agents",
        "rollout.registry",
        "rollout.server.app",
        "rollout.tools",
        "rollout.types",
    ),
    "library": ("agentic_rollout", "core", "agents", "tools.", "utils.llm_client"),
}
"""How the modules begin that count without `__all__`."""
WITHIN = {"sdk": ("", "rollout", "eval.rubric"), "library": ("",)}
"""The packages that hold the names of authors. The rest is the command line and a platform."""
LEFT_OUT = ("profiler", "cc_tools", "r2e", "k8s_", "_icepop", "trajectory_preview")
"""Parts of names of modules that no documentation names."""


def modules(package: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the public modules below a package by their names, without the name of the package."""
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        private = any(part.startswith("_") for part in name.split("."))
        if not private and not any(part in name for part in LEFT_OUT):
            yield name, ast.parse(path.read_text())


def named(tree: ast.Module) -> list[str] | None:
    """Return the names of `__all__`; None without it."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            return sorted({text for text in texts if isinstance(text, str) and text.isidentifier()})
    return None


def defined(tree: ast.Module) -> list[str]:
    """Return the public classes and functions of a module."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return sorted(each.name for each in tree.body if isinstance(each, kinds) and not each.name.startswith("_"))


def within(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module is one of the packages, or below one of them."""
    return any(name == each or not each or name.startswith(f"{each}.") for each in packages)


def main(system: str, version: str, folder: str = "") -> None:
    """Record the names of one version."""
    package = PACKAGES[system]
    if folder:
        root = Path(folder) / package
    else:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations
        root = Path(spec.submodule_search_locations[0])
    packages = tuple(each for each in WITHIN[system] if each) if system == "sdk" else WITHIN[system]
    found = {}
    for name, tree in modules(root):
        if not name or within(name, packages):
            listed = named(tree)
            if listed is None and name.startswith(DOCUMENTED[system]):
                listed = defined(tree)
            if listed:
                found[name] = " ".join(listed)
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    data.setdefault(system, {})[version] = found
    data[system] = dict(sorted(data[system].items()))
    DATA.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
