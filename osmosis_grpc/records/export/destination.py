"""Writes a file or a folder under a temporary name, and renames it when it is complete."""

import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from osmosis_grpc.protocol.errors import InvalidArgument

MANIFEST = "export.json"
"""The file that marks a folder as an export, and describes it."""

SHOWN = 50
"""The most characters of a file's name in its temporary name, so that the latter is not too long to be created."""


class Destination:
    """A file or folder to write. Use it with `with`: it gets its name at the end, and is removed after an error.

    Entering raises InvalidArgument if the name is taken or cannot be written. `overwrite` replaces an existing file, or
    a folder that an export wrote.
    """

    def __init__(self, path: Path, *, folder: bool, overwrite: bool = False, stdout: bool = False) -> None:
        """Write to `path`, or to stdout if `stdout` is set."""
        self.path = path
        self.folder = folder
        self.manifest: dict[str, Any] = {}
        """The content of MANIFEST, written at the end."""
        self._overwrite, self._stdout = overwrite, stdout
        self._working = path.with_name(f".{path.name[:SHOWN]}.{secrets.token_hex(8)}.partial")
        self._file: TextIO | None = None

    def __enter__(self) -> "Destination":
        if self._stdout:
            return self
        self._check()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.folder:
                self._working.mkdir()
            else:
                self._file = self._working.open("x", encoding="utf-8", newline="\n")
        except OSError as error:
            raise InvalidArgument("output", f"{self.path} cannot be written: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._stdout:
            sys.stdout.flush()
            return
        try:
            if self._file is not None:
                self._file.close()
            if kind is None:
                self._complete()
        finally:
            self._remove(self._working)

    @property
    def working(self) -> Path:
        """The folder to write into, until the end."""
        return self._working

    @property
    def file(self) -> TextIO:
        """The file to write."""
        if self._stdout:
            return sys.stdout
        assert self._file is not None
        return self._file

    def _check(self) -> None:
        path = self.path
        if not os.path.lexists(path):
            return
        kind = "folder" if path.is_dir() else "file"
        if kind != ("folder" if self.folder else "file"):
            raise InvalidArgument("output", f"{path} is a {kind}; name another {'folder' if self.folder else 'file'}")
        if self.folder and not any(path.iterdir()):
            return
        if not self._overwrite:
            raise InvalidArgument(
                "output", f"{path} exists; name another {kind}, or allow to replace it: overwrite=True"
            )
        if self.folder and not (path / MANIFEST).is_file():
            raise InvalidArgument("output", f"{path} is a folder that no export wrote; name another folder")

    def _complete(self) -> None:
        if self.folder:
            (self._working / MANIFEST).write_text(json.dumps(self.manifest, indent=2) + "\n", encoding="utf-8")
            if self.path.exists():
                old = self.path.with_name(f"{self._working.name}.old")
                self.path.rename(old)
                self._working.rename(self.path)
                if old.is_symlink():  # remove the link, not the folder that it points to
                    old.unlink()
                else:
                    shutil.rmtree(old)
                return
        os.replace(self._working, self.path)

    @staticmethod
    def _remove(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
