"""Runs a command on a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path


def on_terminal(*arguments: str, cwd: Path, columns: int = 80, **variables: str) -> tuple[int, str]:
    """Run `python -m osmosis_grpc ...` on a terminal of `columns` columns. Return its exit code and all that it wrote.

    A variable with an empty value is unset.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "", **variables}
    environment = {name: value for name, value in (os.environ | given).items() if value}
    command = [sys.executable, "-m", "osmosis_grpc", *arguments]
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the process has ended
                break
            if not read:
                break
            written += read
        os.close(ours)
        code = process.wait(30)
    return code, written.decode().replace("\r\n", "\n")
