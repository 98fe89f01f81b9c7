"""Copies the artifacts of a task from the agent's box into that of the tests.

The daemon reads and writes the files, so programs that the agent has replaced are not used, and files that it has put
beside an artifact are not copied.
"""

import fnmatch
import posixpath
import tarfile
from collections.abc import Callable, Sequence

from osmosis_grpc.tools.containers.archive import Archive
from osmosis_grpc.tools.docker import DockerMachine
from osmosis_grpc.tools.tasks.harbor_task import Artifact

_EMPTY = """if [ -d "$1" ]; then find "$1" -mindepth 1 -delete; else rm -f "$1"; fi"""
_NOWHERE = "/artifact"
"""A folder that represents the artifact when its links are checked."""


async def copy_artifacts(
    machine: DockerMachine, artifacts: Sequence[Artifact], source: str, folder: str, target: str, most: int
) -> None:
    """Copy artifacts, each to its own path. A folder replaces the one at this path.

    Missing artifacts, and links that lead out of their artifact, are left out.

    Args:
        machine: The machine of both containers.
        artifacts: The artifacts.
        source: The container with the artifacts, which is paused.
        folder: The folder of artifacts with relative paths.
        target: The other container.
        most: The most bytes of an artifact.

    Raises:
        SandboxError: A container failed, or an artifact is larger.
    """
    for artifact in artifacts:
        path = posixpath.normpath(posixpath.join(folder, artifact.source))
        content = await machine.read_path(source, path, most)
        if content is None:
            continue
        async with content, Archive(most) as checked:
            await checked.copy(content, placed(path, artifact.exclude))
            await machine.run_as_root(target, _EMPTY, path)
            await machine.write_archive(target, checked)


def placed(path: str, exclude: Sequence[str] = ()) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """Return a function that moves the members of a path's archive to the root folder, except those that lead out of
    it.

    Args:
        path: The absolute path of a file or a folder.
        exclude: Patterns of files that are left out, as in tar.
    """
    top = posixpath.basename(path)

    def change(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        first, *rest = member.name.strip("/").split("/")
        if first != top or (not rest and not (member.isreg() or member.isdir())) or _excluded(rest, exclude):
            return None
        link = member.linkname.removeprefix(f"{top}/") if member.islnk() else member.linkname
        try:
            inside = member.replace(name=posixpath.join(*rest) if rest else ".", linkname=link, deep=False)
            safe = tarfile.data_filter(inside, _NOWHERE)
        except tarfile.FilterError:
            return None
        mode = 0o777 if member.isdir() else member.mode & 0o755 | 0o444  # the tests may have another user
        link = posixpath.join(path, link).lstrip("/") if member.islnk() else safe.linkname
        name = posixpath.join(path, *rest).lstrip("/")
        return safe.replace(name=name, linkname=link, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)

    return change


def _excluded(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether a path, or a folder that it is in, matches a pattern from any of its names on."""
    paths = ("/".join(parts[begin:end]) for begin in range(len(parts)) for end in range(begin + 1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(path, pattern.removeprefix("./")) for path in paths for pattern in patterns)
