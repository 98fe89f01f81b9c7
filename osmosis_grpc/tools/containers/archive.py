"""A tar archive in a temporary file on this machine, for copying folders into and out of containers."""

import hashlib
import os
import posixpath
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import IO, Self, cast

from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.tools.sandbox import SandboxError

_threads = DaemonThreads(8)
"""The threads that read and write the files."""


class Archive:
    """A tar archive with at most `most` bytes. Use it with `async with`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._file: IO[bytes] | None = None
        self._closed = False
        self.bytes = 0
        """The size of the archive, in bytes."""

    async def write(self, data: bytes) -> None:
        """Append to the archive. Raises SandboxError above the limit."""
        await _threads.run(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self._most:
            raise SandboxError(f"snapshot_bytes: the folder has more than {self._most} bytes")
        self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._file.write(data)

    async def fill(self, folder: Path, within: str = ".") -> None:
        """Append the content of a folder on this machine, with root as the owner. Raises SandboxError.

        Args:
            folder: The folder.
            within: The folder of the archive that gets the content.
        """

        def work() -> None:
            try:
                with tarfile.open(fileobj=cast(IO[bytes], _Appended(self)), mode="w|") as archive:
                    for path in sorted(folder.iterdir()):  # not the folder itself, which has a mode of this machine
                        archive.add(path, posixpath.join(within, path.name), filter=_of_root)
            except (OSError, tarfile.TarError) as error:
                raise SandboxError(f"{folder}: cannot be copied: {error}") from None

        await _threads.run(work)

    async def copy(self, other: "Archive", change: Callable[[tarfile.TarInfo], tarfile.TarInfo | None]) -> None:
        """Append the members of another archive.

        Args:
            other: The other archive.
            change: Returns the changed member, or None to leave it out.

        Raises:
            SandboxError: The other file is not an archive, or this archive becomes too large.
        """

        def work() -> None:
            target = cast(IO[bytes], _Appended(self))
            try:
                with (
                    tarfile.open(fileobj=other.opened(), mode="r|") as source,
                    tarfile.open(fileobj=target, mode="w|") as made,
                ):
                    for member in source:
                        changed = change(member)
                        if changed is not None:
                            made.addfile(changed, source.extractfile(member) if member.isreg() else None)
            except (OSError, tarfile.TarError) as error:
                raise SandboxError(f"the copy of the container cannot be read: {error}") from None

        await _threads.run(work)

    async def extract(self, folder: Path) -> None:
        """Write the plain files and folders of the archive below a folder of this machine. Raises SandboxError."""

        def work() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            if self._file is None:
                return
            try:
                with tarfile.open(fileobj=self.opened(), mode="r|") as archive:
                    archive.extractall(folder, filter=_plain)  # noqa: S202 - the filter checks each path
            except (OSError, tarfile.TarError) as error:
                raise SandboxError(f"{folder}: the copy of the container cannot be written: {error}") from None

        await _threads.run(work)

    def opened(self) -> IO[bytes]:
        """Return the archive as a file at its beginning. It is closed with the archive."""
        if self._file is None:
            raise SandboxError("the archive is empty")
        self._file.seek(0)
        return self._file

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the parts of the archive. Several sandboxes may read it at once."""
        start = 0
        while start < self.bytes:
            part = await _threads.run(lambda at=start: self._part(at))  # type: ignore[misc]
            start += len(part)
            yield part

    def _part(self, start: int) -> bytes:
        if self._file is None or self._closed:
            raise SandboxError("the copy of the folder is closed")
        self._file.flush()
        return os.pread(self._file.fileno(), 256 * 1024, start)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the archive. Idempotent."""
        self._closed = True
        file, self._file = self._file, None
        if file is not None:
            await _threads.run(file.close)


class _Appended:
    """The file object that tarfile writes to."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def write(self, data: bytes) -> int:
        self._archive._append(data)
        return len(data)


def digest_of_folder(folder: Path, without: Collection[str] = ()) -> str:
    """Return a hash of the files of a folder: of their paths, their contents, and whether they are executable.

    Files and folders directly in the folder whose names are in `without` do not count. Raises OSError.
    """
    hashed = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] not in without)
    for path in sorted(path for path in files if path.is_symlink() or path.is_file()):
        linked = path.is_symlink()
        content = os.readlink(path).encode() if linked else path.read_bytes()
        kind = "link" if linked else "program" if path.stat().st_mode & 0o100 else "file"
        head = f"{path.relative_to(folder).as_posix()}\0{kind}\0{len(content)}\0"
        hashed.update(head.encode(errors="surrogateescape") + content)
    return hashed.hexdigest()


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return a member of an untrusted archive if it is a file or a folder; otherwise None."""
    return tarfile.data_filter(member, folder) if member.isfile() or member.isdir() else None
