"""Kills the processes and removes the folders that a dead server has left.

A server starts this file as a process and writes to its standard input: one JSON line for each workspace that begins
or ends. The reaper answers a line about a beginning with one byte. When the server dies, the input ends, and the reaper
cleans up every workspace that has not ended. It imports only the standard library, so it starts fast and needs little
memory.
"""

import contextlib
import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

MARKER = "OSMOSIS_PROCESS_MARKER"
"""The environment variable that every process of a workspace inherits.

Its value is the marker of the workspace, then possibly a dot and the number of the program.
"""
_VARIABLE = MARKER.encode() + b"="
KILL_WITHIN = 5.0
"""kill_marked() gives up after this many seconds."""
PAUSE = 0.005
"""Seconds between two searches for processes."""
REMOVED_AT_ONCE = 16
UNREADABLE_SEARCHES = 3
"""A process that just starts another program has no readable environment. The search is repeated so many times."""

Markers = Mapping[str, int | None]
"""Markers of workspaces, or of single programs of workspaces. The user belongs to the workspace alone, or is None."""
Enter = Callable[[str, int | None], int | None]
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags with which a folder is opened."""
OPEN = 16
"""A walk keeps at most this many folders open."""
Found = tuple[dict[str, set[int]], bool]
"""Processes by marker, and whether a process of the machine has no readable environment."""


def kill_once(markers: Markers) -> Found:
    """Search once for the processes of markers, see kill_marked(). Kill and return them."""
    found, unsure = _processes(markers)
    for pid in set().union(*found.values()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found, unsure


def kill_marked(markers: Markers, search: Callable[[Markers], Found] = kill_once) -> None:
    """Kill every process whose environment has one of the markers, and the descendants of these processes.

    If a marker has a user, every process of this user is killed, too. Returns when no such process is left, and at the
    latest after KILL_WITHIN seconds. `search` does what kill_once() does. Does nothing on a system without /proc.
    """
    deadline, unreadable = time.monotonic() + KILL_WITHIN, 0
    killed: set[int] = set()
    while markers and time.monotonic() < deadline:
        found, unsure = search(markers)
        for marker, pids in found.items():
            user = markers[marker]
            if user is not None and killed and pids - killed:  # it starts processes faster than a search finds them
                _kill_user(user)
        unreadable += unsure
        if not found and (not unsure or unreadable > UNREADABLE_SEARCHES):
            return
        killed = set().union(*found.values())
        time.sleep(PAUSE)


def _kill_user(user: int) -> None:
    """Kill all processes of a user at once, so that none of them can start a further one meanwhile."""
    import subprocess  # it takes a third of the time in which this file starts

    with contextlib.suppress(OSError):
        switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        subprocess.run([*switch, "sh", "-c", "kill -9 -1"], check=False, cwd="/", stderr=subprocess.DEVNULL)


def _processes(markers: Markers) -> Found:
    """Return the living processes of each marker and their descendants, but never this process.

    Also returns whether a process has no readable environment.
    """
    wanted = {marker.encode(): marker for marker in markers}
    users = {user: marker for marker, user in markers.items() if user is not None}
    owners = {0, *users} if len(users) == len(markers) else None
    """The owners of the folders in /proc of processes that can be wanted. It saves most of the time of a search."""
    parents: dict[int, int] = {}
    found: dict[int, set[str]] = {}
    unsure = False
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if owners is not None and os.stat(f"/proc/{pid}").st_uid not in owners:
                continue
            state, parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:2]
            if pid == os.getpid() or state in (b"Z", b"X"):
                continue
            parents[pid] = int(parent)
            owner = users.get(_user(pid)) if users else None
            if owner is not None:
                found[pid] = {owner}
            environment = _read(f"/proc/{pid}/environ")
            if not environment and owner is None and 2 not in (pid, int(parent)):  # 2 has the kernel's threads
                unsure = True
            marked = {wanted[each] for each in _markers(environment) if each in wanted}
            if marked:
                found[pid] = found.get(pid, set()) | marked
    newest = dict(found)
    while newest:
        newest = {pid: newest[parent] for pid, parent in parents.items() if parent in newest and pid not in found}
        found |= newest
    made: dict[str, set[int]] = {}
    for pid, of_pid in found.items():
        for marker in of_pid:
            made.setdefault(marker, set()).add(pid)
    return made, unsure


def _markers(environment: bytes) -> set[bytes]:
    if _VARIABLE not in environment:
        return set()
    values = [each.removeprefix(_VARIABLE) for each in environment.split(b"\0") if each.startswith(_VARIABLE)]
    return {*values, *(value.partition(b".")[0] for value in values)}


def _user(pid: int) -> int:
    """Return the user of a process. The owner of its folder in /proc can be root instead."""
    return int(_read(f"/proc/{pid}/status").partition(b"\nUid:")[2].split(None, 1)[0])


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _pids() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


class _Level:
    def __init__(self, name: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.name, self.descriptor = name, descriptor
        self.identity = status.st_dev, status.st_ino
        self.folders: list[str] = []
        """The folders in it that are still to be visited."""

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def walk(top: int, visit: Callable[[int], list[str]], enter: Enter, leave: Callable[[str, int], None]) -> None:
    """Visit a folder and all folders below it, each folder before those in it. Close `top` at the end.

    Each folder is opened relative to its parent, so a path can have any length. At most OPEN folders are open at a
    time; a parent that was closed is opened again from its child. Raises OSError if a program has moved or removed the
    child meanwhile.

    Args:
        top: the descriptor of the folder
        visit: gets the descriptor of a folder, and returns the names of the folders in it to visit next
        enter: opens a folder, given its name and the descriptor of its parent; None skips it
        leave: gets the name of a folder whose content was visited, and the descriptor of its parent
    """
    path = [_Level("", top)]
    try:
        path[0].folders = visit(top)
        while True:
            here = path[-1]
            if here.folders:
                name = here.folders.pop()
                inner = enter(name, here.descriptor)
                if inner is not None:
                    path.append(_Level(name, inner))
                    path[-1].folders = visit(inner)
                    if len(path) > OPEN:
                        path[-OPEN - 1].close()
            elif len(path) == 1:
                return
            else:
                around = path[-2]
                if around.descriptor < 0:
                    path[-2] = again = _Level(around.name, os.open("..", FOLDER, dir_fd=here.descriptor))
                    again.folders = around.folders
                    if again.identity != around.identity:
                        raise OSError(errno.ESTALE, "a folder was moved", here.name)
                path.pop().close()
                leave(here.name, path[-1].descriptor)
    finally:
        for level in path:
            level.close()


def remove_folder(folder: str | Path) -> None:
    """Remove a folder with its content, also where a program has taken away its own permissions.

    A part that cannot be removed stays. If a program has put a symbolic link in the folder's place, the link is removed
    and its target stays.
    """
    with contextlib.suppress(OSError):
        if os.path.islink(folder):
            os.unlink(folder)
        elif (top := _entered(str(folder))) is not None:
            walk(top, _emptied, _entered, _removed)
            os.rmdir(folder)


def _entered(name: str, around: int | None = None) -> int | None:
    with contextlib.suppress(OSError):
        try:
            return os.open(name, FOLDER, dir_fd=around)
        except PermissionError:
            if stat.S_ISDIR(os.stat(name, dir_fd=around, follow_symlinks=False).st_mode):
                os.chmod(name, stat.S_IRWXU, dir_fd=around)
            return os.open(name, FOLDER, dir_fd=around)
    return None


def _emptied(folder: int) -> list[str]:
    folders: list[str] = []
    with contextlib.suppress(OSError):
        if os.fstat(folder).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(folder, stat.S_IRWXU)
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
    return folders


def _removed(name: str, around: int) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=around)


def _remove_folders(folders: Collection[str]) -> None:
    if folders:
        from concurrent.futures import ThreadPoolExecutor  # as late as the import above

        with ThreadPoolExecutor(REMOVED_AT_ONCE) as threads:
            list(threads.map(remove_folder, folders))


def begins(marker: str, folder: str, user: int | None = None) -> bytes:
    """Return the line for a workspace that begins."""
    return _line({"begins": marker, "folder": folder, "user": user})


def ends(marker: str) -> bytes:
    """Return the line for a workspace that has ended."""
    return _line({"ends": marker})


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def main() -> None:
    """Read lines until the server dies, and clean up then."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are meant for the server
        signal.signal(number, signal.SIG_IGN)
    left: dict[str, str] = {}
    users: dict[str, int | None] = {}
    answers: Any = sys.stdout.buffer
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, KeyError):  # the server died within a line
            message = json.loads(line)
            if "begins" in message:
                left[message["begins"]] = message["folder"]
                users[message["begins"]] = message["user"]
                with contextlib.suppress(OSError):
                    answers.write(b".")
                    answers.flush()
            else:
                left.pop(message["ends"], None)
                users.pop(message["ends"], None)
    kill_marked(users)
    _remove_folders(left.values())


if __name__ == "__main__":
    main()
