"""Finds programs, libraries and startup files that an agent has changed and that the tests of its task also use.

In Harbor's mode "shared", the tests run in the file system that the agent has left. An agent that may write anywhere
can replace the interpreter of the tests, and a fresh copy of the tests does not help. So such changes are reported.
"""

import posixpath
from collections.abc import Mapping

from osmosis_grpc.tools.docker import DockerMachine

_BINS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OF_IMAGE = (*(f"{folder}/" for folder in _BINS), "/lib", "/usr/lib", "/usr/local/lib")
_LOADED = ("sitecustomize.py", "usercustomize.py")
"""Modules that every Python interpreter imports at its start."""
_SETTINGS = ("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/environment")
_LEFT_OUT = ("/__pycache__", ".pyc", "/docker-init")
"""Compiled files, and files that Docker itself puts into each container."""
MOST = 20
"""At most this many paths are reported."""
LOOKS = 100
"""At most this many new programs are compared with those of other folders."""


async def changed_programs(machine: DockerMachine, name: str) -> list[str]:
    """Return changed paths of a container that affect its programs, at most 20. Raises SandboxError.

    These are changed programs and libraries of the image, new programs with the name of another one, and files that a
    program loads at its start.

    Args:
        machine: The machine of the container.
        name: The name of the container.
    """
    changes = await machine.changes(name)
    found = suspects(changes)
    new = [path for path, of_image in changes.items() if not of_image and posixpath.dirname(path) in _BINS]
    for path in new[:LOOKS]:
        folder, program = posixpath.split(path)
        same = folder.removeprefix("/usr")  # most systems have one folder for /bin and /usr/bin
        others = (posixpath.join(other, program) for other in _BINS if other.removeprefix("/usr") != same)
        if any([await machine.has_path(name, other) for other in others]):
            found.append(path)
    return sorted(set(found))[:MOST]


def suspects(changes: Mapping[str, bool]) -> list[str]:
    """Return the changed paths that affect programs, judged by their names.

    Args:
        changes: For each changed path, whether the image has it. The folders of a changed path are included.
    """
    folders = {posixpath.dirname(path) for path in changes}
    return [path for path, of_image in changes.items() if path not in folders and _is_suspect(path, of_image)]


def _is_suspect(path: str, of_image: bool) -> bool:
    if path in _SETTINGS or posixpath.basename(path) in _LOADED or path.endswith(".pth"):
        return True
    return of_image and path.startswith(_OF_IMAGE) and not any(mark in path for mark in _LEFT_OUT)
