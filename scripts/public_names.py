"""Write docs/public-names.md, the names that users import, or with --check see that it is fresh.

A public module says in `__all__` what it promises. With --check, the docstrings are checked, too: a public function,
class or method with two parameters or more has a section `Args:` that names each of them. released_names.txt has the
names of the last release: a name that it has and a module has no more is an error. --freeze writes it.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "public-names.md"
RELEASED = ROOT / "scripts" / "released_names.txt"
PACKAGE = "osmosis_grpc"
MODULES = {
    "The package": (
        ".agent",
        ".tools",
        ".tools.sandbox",
        ".tools.kubernetes",
        ".tools.docker",
        ".tools.tasks",
        ".environments",
        ".trainer",
        ".policies",
        ".policies.transformers",
        ".records.export",
        ".server",
        ".testing",
        ".testing.calculator",
        ".testing.raw",
    ),
    "Integrations": tuple(
        f".integrations.{path.stem}"
        for path in sorted((ROOT / PACKAGE / "integrations").iterdir())
        if path.name[0] not in "._"
    ),
    "Import paths of older systems": ("", ".rollout", ".agentic"),
}
"""The public modules below osmosis_grpc, by heading."""
OLDER = """\
Programs for the Osmosis SDK (`osmosis_ai`) and for the Agentic Rollout Library find their names here. `RolloutRequest`
and `RolloutMetrics` are checked by pydantic there, and the fields of a request can be set. Such a request is also a
`RolloutRequest` of `osmosis_grpc.trainer`.
"""
HEAD = f"""\
# Public names

Import what you use from the modules on this page: these names stay, with their parameters and fields, until a release
has announced their end and two minor releases have warned of it. Everything else in `{PACKAGE}` is internal and may
change with any release. `python scripts/public_names.py` writes the page.
"""

UNCHECKED = {f"{PACKAGE}.testing.raw", f"{PACKAGE}.rollout", f"{PACKAGE}.agentic", PACKAGE}
"""Modules whose docstrings are not checked: single frames for tests, and the names of older systems."""
NOT_CALLED = {
    "Annotation.check_against",
    "ContainerSandbox",
    "LocalSnapshot",
    "OsmosisSession",
    "ContainerSnapshot",
    "RaggedTensor.check",
    "RolloutContext.ask",
    "SandboxRefused",
    "SegmentAnnotation.check",
    "StreamEnd",
    "Tensor.check",
}
"""Methods that programs do not call, and classes that they get and do not make."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def modules() -> list[str]:
    """Return the full names of all public modules."""
    return [PACKAGE + name for names in MODULES.values() for name in names]


def names_of(module: str) -> list[str]:
    """Return the names of a public module: its `__all__`, or what its .pyi file imports."""
    for node in _tree(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        literal = isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.List)
        if literal and target.id == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.casefold)
    return sorted(_imports(_path(module).with_suffix(".pyi")), key=str.casefold)


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for heading, rooms in MODULES.items():
        about = f"{OLDER}\n" if ".rollout" in rooms else ""
        parts.append(f"## {heading}\n\n{about}| module | names |\n|---|---|")
        for name in rooms:
            listed = ", ".join(f"`{each}`" for each in names_of(PACKAGE + name))
            parts.append(f"| `{PACKAGE}{name}` | {listed} |")
        parts.append("")
    return "\n".join(parts)


def frozen() -> str:
    """Return a line for each public module, with its names."""
    return "".join(f"{module}: {' '.join(names_of(module))}\n" for module in modules())


def lost(released: str) -> Iterator[str]:
    """Yield each name of the last release that is no more."""
    for line in released.splitlines():
        module, _, names = line.partition(": ")
        now = names_of(module) if module in modules() else []
        for name in sorted(set(names.split()) - set(now)):
            yield f"{module}.{name} is a name of the last release: CONTRIBUTING.md says how a name ends"


def problems() -> Iterator[str]:
    """Yield each public function, class and method whose docstring lacks a parameter."""
    seen = set[tuple[Path, int]]()
    for module in set(modules()) - UNCHECKED:
        for name in names_of(module):
            path, node = definition(module, name)
            if path is None or node is None or (path, node.lineno) in seen:
                continue
            seen.add((path, node.lineno))
            for label, line, missing in _undocumented(path, node):
                yield f"{path.relative_to(ROOT)}:{line}: the Args of {label} lack {', '.join(missing)}"


def definition(module: str, name: str) -> tuple[Path | None, Definition | None]:
    """Return the file and the node of a public name; None for a name that is no function and no class."""
    path = _path(module)
    for node in _parsed(path).body:
        if isinstance(node, Definition) and node.name == name and not _is_overload(node):
            return path, node
    source = {**_imports(path.with_suffix(".pyi")), **_imports(path)}.get(name)
    ours = source is not None and source[0].startswith(("osmosis_grpc", "osmosis_gateway"))
    return definition(*source) if source and ours and source[0] != module else (None, None)


def _undocumented(path: Path, node: Definition) -> Iterator[tuple[str, int, list[str]]]:
    if not isinstance(node, ast.ClassDef):
        yield from _missing(node.name, node, ast.get_docstring(node))
        return
    for each in node.body:
        if not isinstance(each, Function) or _is_overload(each):
            continue
        if each.name == "__init__" and path.name != "errors.py":
            yield from _missing(node.name, each, ast.get_docstring(node))
        elif not each.name.startswith("_"):
            yield from _missing(f"{node.name}.{each.name}", each, ast.get_docstring(each))


def _missing(label: str, node: Function, docstring: str | None) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the parameters without a line in the section Args. A method without docstring has that of its base."""
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names = [name for name in names if name not in ("self", "cls")]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    if docstring is None or len(names) < 2 or label in NOT_CALLED:
        return
    args = docstring.partition("\nArgs:\n")[2]
    described = {line.strip().partition(":")[0] for line in args.splitlines()}
    if missing := [name for name in names if name not in described]:
        yield label, node.lineno, missing


def _is_overload(node: Definition) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def _path(module: str) -> Path:
    root = ROOT / "gateway" if module.startswith("osmosis_gateway") else ROOT
    place = root / module.replace(".", "/")
    package = place / "__init__.py"
    return package if package.exists() else place.with_suffix(".py")


def _tree(module: str) -> ast.Module:
    return _parsed(_path(module))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> dict[str, tuple[str, str]]:
    """Return where a file imports its names from: the module, and the name there."""
    if not path.exists():
        return {}
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def main(check: bool = False, freeze: bool = False) -> int:
    """Write the page, or check it and the docstrings; `freeze` writes the names of a release, too."""
    if freeze:
        RELEASED.write_text(frozen())
    if not check:
        PAGE.write_text(page())
        return 0
    found = [*problems(), *lost(RELEASED.read_text())]
    if not PAGE.exists() or PAGE.read_text() != page():
        found.append(f"{PAGE.name} is not up to date: run python scripts/public_names.py")
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:], "--freeze" in sys.argv[1:]))
