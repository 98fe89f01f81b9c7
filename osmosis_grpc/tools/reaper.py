"""Kills the processes and removes the folders that a dead server has left.

A server starts this file as a process and writes to its standard input: one JSON line for each workspace that begins
or ends. The reaper answers a line about a beginning with one byte. When the server dies, the input ends, and the reaper
cleans up every workspace that has not ended. It imports only the standard library, so it starts fast and needs little
memory.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MARKER = "OSMOSIS_PROCESS_MARKER"
"""The environment variable that every process of a workspace inherits.

Its value is the marker of the workspace, then possibly a dot and the number of the program.
"""
KILL_WITHIN = 5.0
"""kill_marked() gives up after this many seconds."""
PAUSE = 0.005
"""Seconds between two searches for processes."""
UNREADABLE_SEARCHES = 3
"""A process that just starts another program has no readable environment. The search is repeated so many times."""


def kill_marked(markers: Mapping[str, int | None]) -> None:
    """Kill every process whose environment has one of the markers, and the descendants of these processes.

    A marker is that of a workspace, or of one program of a workspace. A marker may have a user, who belongs to the
    workspace alone; every process of this user is killed. Returns when no such process is left, and at the latest after
    KILL_WITHIN seconds. Does nothing on a system without /proc.
    """
    wanted = {marker.encode() for marker in markers}
    users = {user for user in markers.values() if user is not None}
    deadline, unreadable = time.monotonic() + KILL_WITHIN, 0
    while wanted and time.monotonic() < deadline:
        found, seen, unsure = _processes(wanted, users)
        for user in seen:
            _kill_user(user)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        unreadable += unsure
        if not found and (not unsure or unreadable > UNREADABLE_SEARCHES):
            return
        time.sleep(PAUSE)


def _kill_user(user: int) -> None:
    """Kill all processes of a user at once, so that none of them can start a further one meanwhile."""
    import subprocess  # it takes a third of the time in which this file starts

    with contextlib.suppress(OSError):
        switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        subprocess.run([*switch, "sh", "-c", "kill -9 -1"], check=False, cwd="/", stderr=subprocess.DEVNULL)


def _processes(wanted: set[bytes], users: set[int]) -> tuple[set[int], set[int], bool]:
    """Return the living processes with a wanted marker or user and their descendants, but never this process.

    Also returns the users that were found, and whether a process has no readable environment.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    seen: set[int] = set()
    unsure = False
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:2]
            if pid == os.getpid() or state in (b"Z", b"X"):
                continue
            parents[pid] = int(parent)
            user = _user(pid) if users else -1
            if user in users:
                found.add(pid)
                seen.add(user)
                continue
            environment = _read(f"/proc/{pid}/environ")
            unsure = unsure or (not environment and 2 not in (pid, int(parent)))  # 2 has the kernel's threads
            if any(not wanted.isdisjoint(_markers(variable)) for variable in environment.split(b"\0")):
                found.add(pid)
    newest = found
    while newest:
        newest = {pid for pid, parent in parents.items() if parent in newest} - found
        found |= newest
    return found, seen, unsure


def _markers(variable: bytes) -> tuple[bytes, ...]:
    """Return the marker of the program and that of its workspace, if the variable has them."""
    name, _, value = variable.partition(b"=")
    return (value, value.partition(b".")[0]) if name == MARKER.encode() else ()


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


def remove_folder(folder: str | Path) -> None:
    """Remove a folder with its content, also where a program has taken away its own permissions.

    A part that cannot be removed stays. If a program has put a symbolic link in the folder's place, the link is removed
    and its target stays.
    """
    with contextlib.suppress(OSError):
        if os.path.islink(folder):
            os.unlink(folder)
            return
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):  # rmtree() recurses
        _make_removable(str(folder))
        with contextlib.suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)


def _make_removable(folder: str) -> None:
    """Make a folder and the folders in it readable and writable, each before it is read. Follow no link."""
    left = [folder]
    while left:
        path = left.pop()
        with contextlib.suppress(OSError):
            os.chmod(path, stat.S_IRWXU)
            with os.scandir(path) as entries:
                left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


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
    for folder in left.values():
        remove_folder(folder)


if __name__ == "__main__":
    main()
