"""Imports the file of a workflow, apart from the files of other workflows, and finds the workflow in it.

The folder of the file becomes a package with a unique name. So relative imports work, and two folders may have modules
of the same name.

A file that is loaded again is read from its newest source, even if the source has changed twice within a second. Python
reuses a compiled file if its recorded size and second match the source. If the compiled file is hardly newer than the
source, the source may have changed since then, so it is compiled again.
"""

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.source_version import PACKAGE
from osmosis_grpc.agent.workflow import AgentWorkflow, AgentWorkflowConfig, GraderConfig, config_class
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable


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


SOON = 2.0
"""A compiled file is removed if it is not this many seconds newer than its source. Some file systems count in steps of
two seconds."""
_folders: set[Path] = set()


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module. A compiled file that is about as old as the source is not used."""
        path = self.get_filename(fullname)
        try:
            compiled = cache_from_source(path)
            if os.stat(compiled).st_mtime < os.stat(path).st_mtime + SOON:
                os.unlink(compiled)
        except FileNotFoundError:
            pass
        except (OSError, NotImplementedError):
            code: CodeType = self.source_to_code(self.get_data(path), path)
            return code
        return super().get_code(fullname)


def import_newest(folder: Path) -> None:
    """Make later imports of modules below a folder read the newest source. Installed packages are not affected."""
    if folder in _folders:
        return
    if not _folders:
        sys.path_hooks.insert(0, _finder)
    _folders.add(folder)
    for path in [path for path in sys.path_importer_cache if _is_own(path)]:
        del sys.path_importer_cache[path]


def _is_own(path: str) -> bool:
    place = Path(path)
    parts: Sequence[str] = place.parts
    return not {"site-packages", "dist-packages"} & set(parts) and any(map(place.is_relative_to, _folders))


def _finder(path: str) -> FileFinder:
    if not _is_own(path or os.getcwd()) or not os.path.isdir(path or "."):
        raise ImportError("the folder is not below any folder passed to import_newest()", path=path)
    return FileFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


T = TypeVar("T")


class DiscoveryError(ValueError):
    """A module has not exactly one workflow, or more than one grader or configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkflow:
    """A workflow with its configuration and its grader. validate_workflow() checks it before it runs."""

    workflow: type[AgentWorkflow[Any]]
    config: AgentWorkflowConfig | None = None
    grader: type[Grader[Any]] | None = None
    grader_config: GraderConfig | None = None

    @property
    def name(self) -> str:
        """The name that trainers use: that of the configuration, or of the class."""
        return self.config.name if self.config is not None else self.workflow.__name__

    def runnable(self) -> WorkflowRunnable:
        """Return the Runnable for the engine. Raises AgentNameError."""
        return WorkflowRunnable(self.workflow, self.config, self.grader, self.grader_config)


def discover(module: ModuleType, entry_point: str, workflow: type[AgentWorkflow[Any]] | None = None) -> FoundWorkflow:
    """Return the workflow of a module, its grader and their configurations.

    Names count once for each object, and classes that the module imports count, too. `workflow` is the workflow to take
    if the module may have several. Then only instances of the class in its brackets count as its configuration. Raises
    DiscoveryError, which names `entry_point`.
    """
    kind: type = AgentWorkflowConfig
    if workflow is not None:
        kind = config_class(workflow, AgentWorkflow) or kind
    if workflow is None:
        found = _classes(module, AgentWorkflow)
        if not found:
            raise DiscoveryError(f"No AgentWorkflow subclass found in {entry_point!r}")
        workflow = _only(found, entry_point, "AgentWorkflow subclasses")
        assert workflow is not None
    return FoundWorkflow(
        workflow=workflow,
        config=_only(_instances(module, kind), entry_point, "AgentWorkflowConfig instances"),
        grader=_only(_classes(module, Grader), entry_point, "Grader subclasses"),
        grader_config=_only(_instances(module, GraderConfig), entry_point, "GraderConfig instances"),
    )


def grader_config_of(module: ModuleType) -> GraderConfig | None:
    """Return the configuration that a module has for its grader. Raises DiscoveryError if it has several."""
    return _only(_instances(module, GraderConfig), module.__name__, "GraderConfig instances")


def _only(found: dict[str, T], entry_point: str, what: str) -> T | None:
    if len(found) > 1:
        names = ", ".join(sorted(found))
        raise DiscoveryError(f"Multiple {what} found in {entry_point!r}: {names}; keep only one in this file")
    return next(iter(found.values()), None)


def _classes(module: ModuleType, base: Any) -> dict[str, type[Any]]:
    named = _instances(module, type)
    return {name: value for name, value in named.items() if value is not base and issubclass(value, base)}


def _instances(module: ModuleType, kind: type[T]) -> dict[str, T]:
    """Return the instances of a class among a module's names, each by its first name."""
    first = {id(value): (name, value) for name, value in reversed(vars(module).items())}
    return {name: value for name, value in reversed(first.values()) if isinstance(value, kind)}
