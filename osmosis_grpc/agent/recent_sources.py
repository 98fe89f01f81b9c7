"""Imports the modules of a folder from their newest source, even if one was changed twice within a second.

Python uses a compiled file if the size and the second in it match the source. If it was written soon after its source,
the source may have changed once more since then, so the source is compiled again.
"""

import os
import sys
from collections.abc import Sequence
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
from types import CodeType

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
