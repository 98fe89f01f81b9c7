"""The lines of an agent's own code in the traceback of an exception. The values of variables are left out.

An agent's own code is all code except the standard library, this project and installed packages.
"""

import contextlib
import linecache
import os
import sys
import sysconfig
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_FRAMES = 5
"""The most frames of a failure."""
_MOST_CHARS = 256
"""The most characters of each text in a frame: the file, the function and the line of code."""

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_OURS = str(Path(__file__).absolute().parents[2]) + os.sep
_EXAMPLES = os.path.join(_OURS, "testing") + os.sep  # its agents count as a user's code
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages", "osmosis_gateway"))

Line = tuple[str, int, str]
"""An absolute file name, a line number from 1, and the name of the function that has the line."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One line of the agent's code in a traceback."""

    file: str
    """The path, relative to the server's working folder or to the folder of sys.path that has the file."""
    line: int
    """The line number, from 1."""
    function: str
    code: str = ""
    """The line itself, without indentation; empty if there is no source."""


def own_lines(error: BaseException, most: int = MOST_FRAMES) -> list[Line]:
    """Return the last lines of the agent's own code in a traceback. The innermost line is last.

    If there are none, it returns the lines of installed packages, because the agent can be an installed package.
    """
    own: deque[Line] = deque(maxlen=most)
    installed: deque[Line] = deque(maxlen=most)
    for file, line, function in _lines(error):
        if is_installed(file):
            installed.append((file, line, function))
        elif is_own(file):
            own.append((file, line, function))
    return [*(own or installed)]


def own_frames(error: BaseException) -> tuple[StackFrame, ...]:
    """Return the lines of own_lines() for a Failure, with short paths and with the code of each line."""
    return tuple(
        StackFrame(_cut(short_path(file)), line, _cut(function), _cut(_code(file, line)))
        for file, line, function in own_lines(error)
    )


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return any(part in file for part in _INSTALLED) and not file.startswith(_OURS)


def is_own(file: str) -> bool:
    """Return whether a file is the user's: not generated, not the standard library's and not this project's."""
    return not file.startswith((_STDLIB, _OURS, "<")) or file.startswith(_EXAMPLES)


def short_path(file: str) -> str:
    """Return a file's path relative to the working folder or to a folder of sys.path.

    Returns the last two parts of the path if the file is in none of these folders.
    """
    file = os.path.abspath(file)
    roots = sorted({os.path.abspath(folder) for folder in sys.path if folder}, key=len, reverse=True)
    if not is_installed(file):
        with contextlib.suppress(OSError):  # the folder was deleted
            roots.insert(0, os.getcwd())
    for root in roots:
        if len(root) > 1 and file.startswith(root + os.sep):
            return file[len(root) + 1 :]
    return os.path.join("...", *file.split(os.sep)[-2:])


def _lines(error: BaseException) -> Iterator[Line]:
    """Yield the lines of an exception's traceback. For a group, then yields the lines of its first exception."""
    link: BaseException | None = error
    for _ in range(16):
        if link is None:
            return
        for frame, line in traceback.walk_tb(link.__traceback__):
            yield _absolute(frame.f_code.co_filename), line, frame.f_code.co_qualname
        if isinstance(link, SyntaxError) and link.filename and not link.filename.startswith("<"):
            yield _absolute(link.filename), link.lineno or 1, "<module>"
        link = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else None


def _absolute(file: str) -> str:
    return file if file.startswith("<") else os.path.abspath(file)


def _code(file: str, line: int) -> str:
    linecache.checkcache(file)
    return linecache.getline(file, line).strip()


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 6] + " [cut]"
