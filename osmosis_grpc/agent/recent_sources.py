"""Imports the modules of a folder from their newest source, also if one was changed twice within a second.

Python takes a compiled file for that of a source with the same size and the same second. A compiled file that was
written soon after its source is from before such a change, or it is not: so it is written again.
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
"""Seconds. Some file systems have times of two seconds."""
_folders: set[Path] = set()


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module. A compiled file that is as old as the source is not used."""
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
    """Let later imports of modules below a folder read their newest source. Installed packages are left out."""
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
    """Return a finder of modules. Raises ImportError for a folder that is not the user's."""
    if not _is_own(path or os.getcwd()) or not os.path.isdir(path or "."):
        raise ImportError("the folder is not below those of import_newest()", path=path)
    return FileFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
