"""Imports the file of a workflow, apart from the files of other workflows.

The folder of the file becomes a package with a name of its own. So relative imports work. Two folders may have modules
of the same name, and a file that is loaded again is read again.
"""

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from osmosis_grpc.agent.recent_sources import import_newest

PACKAGE = "_osmosis_entry_point_"
"""The name of such a package is this text and a digest of the folder's path."""


class EntryPointError(ValueError):
    """A path does not lead to the file of a workflow."""


def is_path(spec: str) -> bool:
    """Return whether a text names a file, and not a module."""
    return "/" in spec or os.sep in spec or spec.endswith(".py") or (":" not in spec and os.path.isfile(spec))


def check_path(spec: str, folder: Path) -> Path:
    """Return the absolute path of a Python file below `folder`. Raises EntryPointError."""
    path = Path(spec)
    if path.is_absolute():
        raise EntryPointError(f"{spec!r} is absolute; name the file by its path below {folder}")
    found = folder / path
    if not found.parent.is_dir():
        raise EntryPointError(f"there is no folder {str(path.parent)!r} in {folder}")
    if path.suffix != ".py":
        raise EntryPointError(f"{spec!r} does not end in .py")
    if not found.is_file():
        raise EntryPointError(f"there is no file {spec!r} in {folder}")
    if not found.resolve().is_relative_to(folder.resolve()):
        raise EntryPointError(f"{spec!r} is outside of {folder}")
    return found.absolute()


def import_file(path: Path) -> ModuleType:
    """Import a Python file as a module of a package with a name of its own. Raises the exception of the file's code.

    While the file is imported, it can also import the modules of its folder by their plain names.
    """
    folder = path.parent
    package = PACKAGE + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    import_newest(folder)
    importlib.invalidate_caches()
    parent = sys.modules[package] = ModuleType(package)
    parent.__path__ = [str(folder)]
    with _plain_imports(folder, package):
        return importlib.import_module(f"{package}.{path.stem}")


@contextlib.contextmanager
def _plain_imports(folder: Path, package: str) -> Iterator[None]:
    """Let the modules of a folder be imported by their plain names, for a while.

    Modules of the same name that were imported before are put aside, and come back at the end. The modules of the
    folder stay in sys.modules under the names of the package, and under their plain names if these are free.
    """
    own = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if _loaded_here(name, own)}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, old in aside.items():
            if name in sys.modules:
                sys.modules.setdefault(f"{package}.{name}", sys.modules[name])
            file = getattr(old, "__file__", None)
            if file is None or not Path(file).is_relative_to(folder):
                sys.modules[name] = old


def _loaded_here(name: str, own: set[str]) -> bool:
    """Return whether a module has the name of a module of the folder, and is neither built in nor installed."""
    top = name.partition(".")[0]
    if top not in own or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)
