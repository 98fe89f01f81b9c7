"""A process, files and sockets outside of every sandbox. A program that reaches one of them has broken out.

`python canary.py FOLDER` listens on TCP and on unix sockets, prints its port, and writes a line for each connection.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT = "canary-5c1f0a"
"""The text of every secret."""


class Canary:
    """What a program of a sandbox may neither read nor change. Used as `with Canary() as canary`."""

    def __enter__(self):
        self._folders = contextlib.ExitStack()
        self.folder = Path(self._folders.enter_context(tempfile.TemporaryDirectory()))
        self.folder.chmod(0o777)
        """Any user of the machine may read and write it."""
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        for path, mode in ((self.folder / "secret", 0o666), (self.home / "secret", 0o600)):
            path.write_text(TEXT)
            path.chmod(mode)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)],
            env={**os.environ, "CANARY_SECRET": TEXT},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.communicate()
        self._folders.close()

    @property
    def pid(self):
        return self._process.pid

    def state(self):
        """What no program may change: files, connections, the process, the name of the machine."""
        files = sorted((str(path), _content(path), path.lstat().st_mode) for path in self.folder.rglob("*"))
        status = Path(f"/proc/{self.pid}/status")
        running = status.exists() and status.read_text().partition("\nState:\t")[2][:1] in ("S", "R")
        return (
            files,
            running,
            socket.gethostname(),
            [path.exists() for path in map(Path, ("/usr/canary", "/etc/canary"))],
        )


def _content(path):
    return path.read_bytes() if path.is_file() else b""


def listen(folder):
    """Accept connections for ever."""
    tcp = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = tcp.getsockname()[1]
    selector = selectors.DefaultSelector()
    for address in (f"\0canary-{port}", f"{folder}/socket"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
    os.chmod(f"{folder}/socket", 0o777)
    selector.register(tcp, selectors.EVENT_READ)
    print(port, flush=True)
    while True:
        for key, _ in selector.select():
            key.fileobj.accept()[0].close()
            with open(f"{folder}/connections", "a") as file:
                file.write("a connection\n")


if __name__ == "__main__":
    listen(sys.argv[1])
