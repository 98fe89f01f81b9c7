"""The methods by which this machine can isolate programs: bubblewrap, namespaces of `unshare`, or only processes.

Each method is tried once with a real program, and the first one that works is used.
"""

import itertools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from osmosis_grpc.tools.sandbox.limits import SandboxLimits, limited
from osmosis_grpc.tools.sandbox.port import Isolation, Protection
from osmosis_grpc.tools.workspace import Workspace

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The variable PATH of programs."""
TEMPORARY = "/tmp"  # noqa: S108
"""The folder for temporary files within bubblewrap. It is a folder of the sandbox."""
SHARED_MEMORY = 64 * 1024 * 1024
"""The bytes of /dev/shm in bubblewrap."""
FIRST_USER, USERS = 1_000_000_000, 1_000_000_000
"""The first number and the count of private users. Accounts of people and containers have smaller numbers."""
PROBE_SECONDS = 10.0

_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "ssl",
    "mime.types",
)
_PYTHONS = ("/usr/local/bin/python3", "/usr/bin/python3")
_OWN = frozenset({Protection.NETWORK, Protection.PROCESSES, Protection.LIMITS})


@dataclass(frozen=True, slots=True)
class Method:
    """A way to isolate programs."""

    name: str
    protections: frozenset[Protection]
    prefix: Callable[[Workspace, Sequence[Path]], list[str]]
    """Returns the words before the command, for a workspace and for more folders that programs can read."""
    own_paths: bool = False
    """Whether programs see the working folder as /work and the temporary one as /tmp."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The method that works on this machine."""

    method: Method
    isolation: Isolation
    private_user: bool
    """Whether each sandbox has a user of its own."""
    python: str
    """An interpreter that programs can start; empty if there is none."""

    def command(
        self, space: Workspace, folder: str, argv: Sequence[str], limits: SandboxLimits, read_only: Sequence[Path]
    ) -> list[str]:
        """Return the command that runs a program in a folder, isolated and limited."""
        count = Protection.LIMITS in self.isolation.protections
        prefix = [*_as_user(space.user), *self.method.prefix(space, read_only)]
        return [*prefix, *limited(limits, folder, argv, count_processes=count)]

    def folder(self, space: Workspace) -> str:
        """Return the working folder as programs see it."""
        return "/work" if self.method.own_paths else str(space.work)

    def temporary(self, space: Workspace) -> str:
        """Return the folder for temporary files as programs see it."""
        return TEMPORARY if self.method.own_paths else str(space.temporary)

    def workspace(self) -> Workspace:
        """Return a new workspace."""
        return Workspace(next(_users) if self.private_user else None)


def _as_user(user: int | None) -> list[str]:
    """Return the beginning of a command that runs as a user without privileges, which it can never regain."""
    if user is None:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", "--"]


def _bubblewrap(space: Workspace, read_only: Sequence[Path]) -> list[str]:
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--hostname", "sandbox", "--uid", "1000", "--gid", "1000"]
    words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"]  # noqa: S108
    for folder in _LINKS:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--bind", str(space.temporary), TEMPORARY, "--bind", str(space.work), "/work"]
    for path in read_only:
        words += ["--ro-bind", str(path), str(path)]
    return [*words, "--remount-ro", "/", "--"]


def _unshare(space: Workspace, read_only: Sequence[Path]) -> list[str]:
    words = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--net", "--ipc", "--uts", "--pid", "--fork"]
    # The first process of a namespace ignores most signals, so a shell is used that waits for the program.
    return [*words, "--kill-child", "--mount", "--mount-proc", "--", "/bin/sh", "-c", '"$@"; exit $?', "sh"]


METHODS = (
    Method("bubblewrap", _OWN | {Protection.FILES}, _bubblewrap, own_paths=True),
    Method("namespaces", _OWN, _unshare),
    Method("processes", frozenset(), lambda space, read_only: []),
)
"""The methods, the best one first. A private user adds the protections USER and LIMITS."""

_lock = Lock()
_users = itertools.count(FIRST_USER + secrets.randbelow(USERS))
"""The numbers of private users. Each sandbox uses the next one."""


def choose(read_only: tuple[Path, ...] = (), name: str = "") -> Choice:
    """Return the best method that works, or the named one. Raises OSError if none works.

    The first call blocks, so call it on a thread.
    """
    with _lock:
        return _chosen(tempfile.gettempdir(), read_only, tuple(each for each in METHODS if name in ("", each.name)))


@cache
def _chosen(temporary: str, read_only: tuple[Path, ...], methods: tuple[Method, ...]) -> Choice:
    """Try the methods. `temporary` is part of the key, because a user may be unable to reach that folder."""
    reasons = []
    private = os.geteuid() == 0
    if not private:
        reasons.append("user: the server is not root")
    for private_user in (True, False) if private else (False,):
        for method in methods:
            protections = method.protections
            if private_user:
                protections |= {Protection.USER, Protection.LIMITS}
            elif private:
                protections -= {Protection.LIMITS}  # the number of root's processes is not limited
            choice = Choice(method, Isolation(method.name, protections), private_user, "")
            python, problem = _tried(choice, read_only)
            if not problem:
                isolation = Isolation(method.name, protections, "; ".join(reasons))
                return Choice(method, isolation, private_user, python)
            reasons.append(f"{method.name}{'' if private_user or not private else ' as root'}: {problem}")
    raise OSError(f"no program can be started in a sandbox: {'; '.join(reasons)}")


_PROBE = """
echo works; touch x && rm x || exit 1
for python in "$@"; do if "$python" -I -S -c ''; then echo "$python"; exit 0; fi; done 2>/dev/null
exit 0
"""


def _tried(choice: Choice, read_only: tuple[Path, ...]) -> tuple[str, str]:
    space = choice.workspace()
    own = [sys.executable, os.path.realpath(sys.executable)]
    try:
        space.make()
        argv = ["/bin/sh", "-c", _PROBE, "sh", *own, *_PYTHONS]
        command = choice.command(space, choice.folder(space), argv, SandboxLimits(), read_only)
        if shutil.which(command[0]) is None:
            return "", f"{command[0]} is not installed"
        done = subprocess.run(
            command,
            cwd="/",
            env={"PATH": PATH, **space.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    finally:
        space.remove()
    works, _, python = done.stdout.decode().strip().partition("\n")
    if works != "works" or done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return "", lines[0] if lines else f"exit code {done.returncode}"
    return python, ""
