"""The version of an agent: a digest of its own source files and of the packages that they import.

Two processes that load the same agent find the same version: only files count, and what their
import statements name, never what else a process has loaded.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

OURS = {"osmosis_grpc": "osmosis-grpc", "osmosis_gateway": "osmosis-grpc"}
"""Our own packages count by their version, wherever they are installed."""
MAX_FILES = 256
DIGITS = 12


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What an agent is made of."""

    digest: str = ""
    """Short hexadecimal digest; empty where no source was found."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Files, by their path below the agent's folder, with a digest each; packages, by name, with a version each."""

    @classmethod
    def of(cls, agent: object) -> "AgentVersion":
        """Returns the version of an agent loop: of the module of its class and of what that imports."""
        parts = dict(_packages_and_files(type(agent)))
        if not any(name.endswith(".py") for name in parts):
            return cls()
        text = json.dumps(parts, sort_keys=True).encode()
        return cls(hashlib.sha256(text).hexdigest()[:DIGITS], parts)


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the names of the parts that differ between two versions, in order."""
    return [name for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]


def _packages_and_files(kind: type) -> Iterator[tuple[str, str]]:
    """Of the first class of the user's own that has a file; what its module imports has its bases."""
    for each in kind.__mro__:
        module = each.__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        if module.partition(".")[0] in OURS:  # an adapter: what it runs is not known here
            return
        if module in sys.stdlib_module_names and module != "__main__":  # a class that was made by a call
            continue
        if file is None or not Path(file).is_file():
            yield from _typed_in(each)
        else:
            yield from _imported_from(Path(file).absolute(), module)
        return


def _imported_from(start: Path, module: str) -> Iterator[tuple[str, str]]:
    packages: set[str] = set()
    source = _Source(start, module)
    waiting, seen = [(start, module)], {start}
    while waiting:
        path, name = waiting.pop()
        try:
            body = path.read_bytes()
        except OSError:
            yield source.relative(path), "unreadable"
            continue
        yield source.relative(path), hashlib.sha256(body).hexdigest()[:DIGITS]
        for imported in _imports(body, name, is_package=path.stem == "__init__"):
            found = source.find(imported)
            if not found:
                packages.add(imported.partition(".")[0])
            new = [row for row in found if row[0] not in seen][: MAX_FILES - len(seen)]
            seen.update(path for path, _ in new)
            waiting += new
    for package in sorted(packages - sys.stdlib_module_names):
        distribution = OURS.get(package, package)
        version = _installed(distribution)
        if version:
            yield distribution, version


class _Source:
    """The folder of an agent: where its module's top-level package is."""

    def __init__(self, file: Path, module: str) -> None:
        parts = [] if module == "__main__" else module.split(".")
        depth = len(parts) if file.stem == "__init__" else max(len(parts) - 1, 0)
        self._root = file.parents[min(depth, len(file.parents) - 1)]
        installed = {"site-packages", "dist-packages"} & set(self._root.parts)
        self._within = parts[0] if installed and parts else ""

    def relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def find(self, name: str) -> list[tuple[Path, str]]:
        """Returns the files of a module and of the packages around it, with their names; none for what is elsewhere."""
        parts = name.split(".")
        if parts[0] in OURS or (self._within and parts[0] != self._within):
            return []
        found = []
        for count in range(1, len(parts) + 1):
            place = self._root.joinpath(*parts[:count])
            for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if path.is_file():
                    found.append((path, ".".join(parts[:count])))
                    break
        return found


def _imports(body: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """The full names of what a file imports, wherever in it."""
    try:
        tree = ast.parse(body)
    except (SyntaxError, ValueError):
        return
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                try:
                    base = importlib.util.resolve_name("." * node.level + base, package)
                except ImportError:
                    continue
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _typed_in(kind: type) -> Iterator[tuple[str, str]]:
    """A class without a file, for example of a notebook: its own source, where it can be found."""
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        return
    yield f"{kind.__qualname__}.py", hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _installed(distribution: str) -> str:
    """The installed version of a distribution, or what the module of that name says; empty where neither is known."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(distribution), "__version__", ""))
