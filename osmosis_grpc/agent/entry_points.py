"""Imports the file of a workflow, apart from the files of other workflows.

The folder of the file becomes a package with a name of its own. So relative imports work. Two folders may have modules
of the same name, and a file that is loaded again is read again.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

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
    importlib.invalidate_caches()
    parent = sys.modules[package] = ModuleType(package)
    parent.__path__ = [str(folder)]
    name = f"{package}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _plain_imports(folder, package):
        spec.loader.exec_module(module)
    return module


class _FreshLoader(SourceFileLoader):
    """Reads the source, and no compiled file, whose time can be that of an older source."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


@contextlib.contextmanager
def _plain_imports(folder: Path, package: str) -> Iterator[None]:
    """Let the modules of a folder be imported by their plain names, for a while.

    Modules of the same name that were imported before are put aside, and come back at the end. The modules of the
    folder stay in sys.modules under the names of the package, and under their plain names if these are free.
    """
    own = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if _loaded_here(name, own)}
    finder = _FolderFinder(folder, own)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, old in aside.items():
            if name in sys.modules:
                sys.modules.setdefault(f"{package}.{name}", sys.modules[name])
            if not _is_below(old, folder):
                sys.modules[name] = old


def _loaded_here(name: str, own: set[str]) -> bool:
    top = name.partition(".")[0]
    if top not in own or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _is_below(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


class _FolderFinder:
    def __init__(self, folder: Path, own: set[str]) -> None:
        self._folder = folder
        self._own = {name for name in own if name not in sys.stdlib_module_names}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return the spec of a module of the folder; None for any other module."""
        if path is None:
            return self._spec(name, self._folder) if name in self._own else None
        return next((self._spec(name, Path(each)) for each in path if Path(each).is_relative_to(self._folder)), None)

    def _spec(self, name: str, folder: Path) -> ModuleSpec | None:
        last = name.rpartition(".")[2]
        package, file = folder / last / "__init__.py", folder / f"{last}.py"
        if not package.is_file() and not file.is_file():
            return None
        found, places = (package, [str(package.parent)]) if package.is_file() else (file, None)
        loader = _FreshLoader(name, str(found))
        return importlib.util.spec_from_file_location(name, found, loader=loader, submodule_search_locations=places)
