"""Kills the processes and removes the folders that a dead server has left.

A server starts this file as a process, and writes one JSON line to its standard input for each workspace that begins or
ends. The reaper confirms each beginning with one byte. When the server dies, the input ends, and the reaper cleans up
all workspaces that have not ended. It imports only the standard library, so it starts fast and needs little memory.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
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
UNREADABLE_SEARCHES = 3
"""A process that is just starting another program has no readable environment. The search is repeated this many
times."""

Markers = Mapping[str, int | None]
"""Markers of workspaces, or of single programs of workspaces. The user belongs to the workspace alone, or is None."""
Found = tuple[dict[str, set[int]], bool]
"""Processes by marker, and whether a process of the machine has no readable environment."""


def kill_once(markers: Markers) -> Found:
    """Search once for the processes of markers, kill them, and return them. See kill_marked()."""
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
    import subprocess  # as late as in remove_folders()

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
    """The possible owners of the wanted processes' folders in /proc. Checking them first saves most of a search's
    time."""
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


def remove_folders(*folders: str | Path) -> None:
    """Remove folders with their content, even if a program has removed its own permissions.

    rm and chmod reach paths of any length, follow no link within a folder, and keep few files open. Parts that cannot
    be removed stay. If a folder was replaced by a symbolic link, the link is removed, and its target stays.
    """
    import subprocess  # it takes a third of the time in which this file starts

    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):
        left = [str(folder) for folder in folders if os.path.exists(folder) or os.path.islink(folder)]
        if command[0] == "chmod":
            left = [folder for folder in left if not os.path.islink(folder)]
        if left:
            with contextlib.suppress(OSError):
                subprocess.run([*command, *left], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begins(marker: str, folder: str, user: int | None = None) -> bytes:
    """Return the line for a workspace that begins."""
    return _line({"begins": marker, "folder": folder, "user": user})


def ends(marker: str) -> bytes:
    """Return the line for a workspace that has ended."""
    return _line({"ends": marker})


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def main() -> None:
    """Read lines until the server dies, and then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # these signals are meant for the server
        signal.signal(number, signal.SIG_IGN)
    left: dict[str, str] = {}
    users: dict[str, int | None] = {}
    answers: Any = sys.stdout.buffer
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, KeyError):  # the server died while it wrote a line
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
    remove_folders(*left.values())


if __name__ == "__main__":
    main()
