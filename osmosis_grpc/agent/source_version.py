"""The version of an agent: a digest of its source files and of the packages that they import.

Two processes that load the same agent compute the same version, because only files and import statements count.
"""

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.syntax_tree import parse

OURS = {"osmosis_grpc": "osmosis-grpc", "osmosis_gateway": "osmosis-grpc"}
"""Our own packages. Only their version is part of an agent's version, not their files."""
PACKAGE = "_osmosis_entry_point_"
"""The prefix of a workflow's package, before a digest of the folder's path; see workflow_files.py."""
MAX_FILES = 256
DIGITS = 12


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """The version of an agent, and its parts."""

    digest: str = ""
    """Short hexadecimal digest; empty if no source was found."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Path of each file below the agent's folder to the file's digest, and name of each package to its version."""

    @classmethod
    def of(cls, agent: object) -> "AgentVersion":
        """Return the version of an agent or of its class. Its parts are the module of the class, and the imports."""
        return cls._of(_packages_and_files(agent if isinstance(agent, type) else type(agent)))

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> "AgentVersion":
        """Return the version of a function, as that of an agent. A decorator that keeps __wrapped__ is looked through.

        The version of a callable object is that of its class.
        """
        inner = inspect.unwrap(function)
        if not inspect.isfunction(inner):
            return cls.of(inner)
        file = getattr(sys.modules.get(inner.__module__), "__file__", None)
        if file is not None and Path(file).is_file():
            return cls._of(_imported_from(Path(file).absolute(), inner.__module__))
        with contextlib.suppress(OSError, TypeError):  # a function of a notebook, for example
            text = inspect.getsource(inner)
            return cls._of([(f"{inner.__qualname__}.py", hashlib.sha256(text.encode()).hexdigest()[:DIGITS])])
        return cls()

    @classmethod
    def _of(cls, found: Iterable[tuple[str, str]]) -> "AgentVersion":
        parts = dict(found)
        if not any(name.endswith(".py") for name in parts):
            return cls()
        text = json.dumps(parts, sort_keys=True).encode()
        return cls(hashlib.sha256(text).hexdigest()[:DIGITS], parts)


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ between two versions, in order."""
    return [name for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]


def _packages_and_files(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the parts of the user's first class that has a file. Its module imports the base classes of the agent."""
    for each in kind.__mro__:
        module = each.__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        if module.partition(".")[0] in OURS:  # an adapter; the code of its agent is not known here
            return
        if module in sys.stdlib_module_names and module != "__main__":  # a class that type() made
            continue
        if file is None or not Path(file).is_file():
            with contextlib.suppress(OSError, TypeError):  # a class of a notebook, for example
                text = inspect.getsource(each)
                yield f"{each.__qualname__}.py", hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
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
        version = _installed(distribution) or str(getattr(sys.modules.get(distribution), "__version__", ""))
        if version:
            yield distribution, version


@lru_cache(maxsize=1024)
def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


class _Source:
    def __init__(self, file: Path, module: str) -> None:
        parts = [] if module == "__main__" else module.split(".")
        self._entry = parts.pop(0) if module.startswith(PACKAGE) else ""
        depth = len(parts) if file.stem == "__init__" else max(len(parts) - 1, 0)
        self._root = file.parents[min(depth, len(file.parents) - 1)]
        installed = {"site-packages", "dist-packages"} & set(self._root.parts)
        self._within = parts[0] if installed and parts else ""

    def relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def find(self, name: str) -> list[tuple[Path, str]]:
        """Return the files of a module and its packages, with their names; [] for a module outside the folder."""
        parts = name.split(".")
        parts = parts[1:] if self._entry and parts[0] == self._entry else parts
        if not parts or parts[0] in OURS or (self._within and parts[0] != self._within):
            return []
        found = []
        for count in range(1, len(parts) + 1):
            base = self._root.joinpath(*parts[:count])
            for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
                if path.is_file():
                    found.append((path, ".".join(parts[:count])))
                    break
        return found


@lru_cache(MAX_FILES)
def _imports(body: bytes, module: str, *, is_package: bool) -> tuple[str, ...]:
    try:
        return tuple(_names(parse(body), module, is_package=is_package))
    except (SyntaxError, ValueError):
        return ()


def _names(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
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
