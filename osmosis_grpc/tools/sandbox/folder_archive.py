"""Saves the folder of a sandbox as one compressed file, and restores it. All functions block.

The file is a tar archive. Its first member is a note of the caller. A truncated or changed file is an error.
"""

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from osmosis_grpc.tools.sandbox.limits import SandboxLimits
from osmosis_grpc.tools.sandbox.port import SandboxError

NOTE = "note"
FILES = "files/"
"""The prefix of the path of each file and folder."""
_ERRORS = (OSError, EOFError, tarfile.TarError, zlib.error)


def write_archive(source: Path, target: Path, note: bytes, limits: SandboxLimits, *, of: int | None) -> int:
    """Save a folder and a note as a file that survives a power cut. Return the bytes of the file.

    Files, folders and links are saved with their permissions and times. Special files are left out, and no link is
    followed. `target` is written completely or not at all. The files must belong to the user `of`; None means the user
    of this process. Raises SandboxError if the folder exceeds the limits, or cannot be read or saved.
    """
    new = target.with_name(f"{target.name}.new")
    try:
        with open(new, "wb") as file:
            with (
                gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, filename="", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                member = tarfile.TarInfo(NOTE)
                member.size = len(note)
                archive.addfile(member, io.BytesIO(note))
                _add_files(archive, source, limits, of)
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
        return target.stat().st_size
    except _ERRORS as error:
        raise SandboxError(f"the working folder cannot be saved: {error}") from None
    finally:
        new.unlink(missing_ok=True)


def _add_files(archive: tarfile.TarFile, source: Path, limits: SandboxLimits, of: int | None) -> None:
    size = 0
    for count, (path, status) in enumerate(_entries(source), 1):
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        limits.check_folder(count, size)
        member = tarfile.TarInfo(FILES + os.fspath(path.relative_to(source)))
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(member)
        elif stat.S_ISREG(status.st_mode):
            member.size = status.st_size
            with _opened(path, of) as content:
                archive.addfile(member, content)


def read_note(path: Path) -> bytes:
    """Return the note of a saved folder. Raises SandboxError."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            member = archive.next()
            note = archive.extractfile(member) if member is not None and member.name == NOTE else None
            if note is None:
                raise tarfile.ReadError("it has no note")
            return note.read()
    except _ERRORS as error:
        raise SandboxError(f"{path.name} is not a saved folder: {error}") from None


def read_archive(path: Path, target: Path, limits: SandboxLimits, owner: int | None) -> None:
    """Put the files of a saved folder into an empty folder. They belong to `owner`. Raises SandboxError."""
    count = size = 0
    folders: list[tuple[Path, tarfile.TarInfo]] = []
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not member.name.startswith(FILES):
                    continue
                count, size = count + 1, size + member.size
                limits.check_folder(count, size)
                made = target / member.name.removeprefix(FILES)
                if member.isdir():
                    made.mkdir(mode=0o700)
                    folders.append((made, member))
                elif member.issym():
                    os.symlink(member.linkname, made)
                else:
                    _extract(archive, member, made)
                if owner is not None:
                    os.chown(made, owner, owner, follow_symlinks=False)
                if member.isreg():
                    _set(made, member)
            assert archive.fileobj is not None
            archive.fileobj.read(-1)  # the checksum is at the end
        for made, member in reversed(folders):  # a folder may lose its write permission after its files are written
            _set(made, member)
    except _ERRORS as error:
        raise SandboxError(f"{path.name} is not a whole saved folder: {error}") from None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, made: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None
    with open(made, "xb") as file:
        while data := content.read(1024 * 1024):
            file.write(data)


def _set(made: Path, member: tarfile.TarInfo) -> None:
    """Set the time and the permissions. The owner of a file is set before, because that clears permissions."""
    os.utime(made, (member.mtime, member.mtime))
    os.chmod(made, member.mode)


def _opened(path: Path, of: int | None) -> IO[bytes]:
    """Open a file of a user; None means the user of this process. Raises OSError and SandboxError.

    The owner is checked because a program can make a hard link to another user's file that it cannot read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != (os.geteuid() if of is None else of):
        os.close(descriptor)
        raise SandboxError(f"the working folder cannot be saved: {path.name} belongs to another user")
    return open(descriptor, "rb")


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is below a folder, each folder before its content. Raises OSError for what cannot be read."""
    left = [folder]
    while left:
        path = left.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield Path(entry.path), status
                if stat.S_ISDIR(status.st_mode):
                    left.append(Path(entry.path))
