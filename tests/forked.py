"""Command lines of Python, each in a process that is forked from one which has imported the project already.

Starting Python and importing takes a second and more; what a command then does takes a fraction of it.
`run` is that of tests.processes otherwise, with warnings as errors. A command may start gRPC, because the process that
forks only imports it. Tests of what a command imports are not for here.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.processes import ROOT
from tests.terminal import Terminal, terminal
from tests.waiting import wait_until


class Process:
    """A process that runs."""

    def __init__(self, forked: "Forked", pid: int) -> None:
        self._forked = forked
        self._code: int | None = None
        self.pid = pid

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        if self._code is None:
            self._code = self._forked.exit_code(self.pid)
        return self._code

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._code is None:
                os.kill(self.pid, number)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()


class Forked:
    """Used as `with Forked("a.module", ...) as forked`: these are imported beforehand."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str]
        self._codes: dict[int, int] = {}

    def __enter__(self) -> "Forked":
        strict = () if os.environ.get("PYTHONWARNINGS") else ("-W", "error")  # `make test-versions` sets it
        command = [sys.executable, *strict, "-m", "tests.forked", *self._modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str, cwd: Path = ROOT, env: Any = os.environ) -> subprocess.CompletedProcess[str]:
        """Run `python -W error -m MODULE ...`, `-c CODE ...` or `FILE ...` to its end."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            code = self.start(*arguments, cwd=cwd, env=env, out=out, err=err).wait()
            return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())

    def start(self, *arguments: str, out: Path, err: Path, cwd: Path = ROOT, env: Any = os.environ) -> Process:
        """Start the same, with its output in two files."""
        return self._start(arguments, cwd, env, os.devnull, out, err)

    @contextlib.contextmanager
    def serving(self, *arguments: str, cwd: Path = ROOT) -> Iterator[str]:
        """Start a server on a free port, without HTTP, and yield its HOST:PORT. It is killed in the end."""
        command = ("-m", "osmosis_grpc.serve", "--grpc-port", "0", "--no-http", "--json", *arguments)
        with self.ready(*command, cwd=cwd) as (_, ready):
            yield ready["grpc"]

    @contextlib.contextmanager
    def ready(self, *command: str, cwd: Path = ROOT) -> Iterator[tuple[Process, dict[str, Any]]]:
        """Start a command that says when it is ready, and yield its process and its record. It is killed in the end."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            with self.start(*command, cwd=cwd, out=out, err=err) as process:
                wait_until(lambda: process.has_ended() or (out.exists() and out.read_text().endswith("\n")))
                assert not process.has_ended(), err.read_text()
                yield process, json.loads(out.read_text().splitlines()[0])

    @contextlib.contextmanager
    def on_terminal(
        self, *arguments: str, cwd: Path = ROOT, columns: int = 80, out: Path | None = None, **variables: str
    ) -> Iterator[tuple[Process, Terminal]]:
        """Start the same on a terminal with colours, as the leader of its session. An empty variable is unset.

        With `out`, its stdout is that file.
        """
        given = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "", "LINES": "", **variables}
        environment = {name: value for name, value in (os.environ | given).items() if value}
        with (
            terminal(columns) as screen,
            self._start(arguments, cwd, environment, screen.path, out or screen.path, screen.path) as process,
        ):
            yield process, screen

    def shown(self, *arguments: str, **options: Any) -> tuple[int, str]:
        """Run the same on a terminal to its end. Return the exit code, and all that it wrote."""
        with self.on_terminal(*arguments, **options) as (process, screen):
            code = process.wait()
        return code, screen.text

    def exit_code(self, pid: int) -> int:
        """Wait for the end of a process, and return its exit code."""
        while pid not in self._codes:
            ended, code = self._reply()
            self._codes[ended] = code
        return self._codes.pop(pid)

    def _start(self, arguments: Sequence[str], cwd: Path, env: Any, *files: "str | Path") -> Process:
        assert self._process.stdin is not None
        job = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "files": list(map(str, files))}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        while len(reply := self._reply()) > 1:
            self._codes[reply[0]] = reply[1]
        return Process(self, reply[0])

    def _reply(self) -> list[int]:
        """Return the pid of a process that has started, or the pid and the exit code of one that has ended."""
        assert self._process.stdout is not None
        return list(map(int, self._process.stdout.readline().split()))


END: list[int] = []
"""The exit code of this process, once it is known; negative if a signal ends it."""


def leave() -> None:
    """End this process without the last step of Python: to take down all modules is most of a short command."""
    if END:
        gc.collect()  # what is left unclosed warns
        sys.stdout.flush()
        sys.stderr.flush()
        if END[0] < 0:
            signal.signal(-END[0], signal.SIG_DFL)
            os.kill(os.getpid(), -END[0])
        os._exit(END[0])


def serve(*modules: str) -> None:
    """Start what is asked for on stdin, and tell pids and exit codes."""
    atexit.register(leave)  # it is called last
    for module in modules:
        __import__(module)
    gc.collect()
    gc.freeze()  # else each process looks at all these objects when it ends
    wakes, wake = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    asked = b""
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    print(ended[0], os.waitstatus_to_exitcode(ended[1]), flush=True)
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                return
            *jobs, asked = (asked + read).split(b"\n")
            for job in jobs:
                child = os.fork()
                if not child:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wakes)
                    os.close(wake)
                    try:
                        become(**json.loads(job))
                        sys.exit()
                    except KeyboardInterrupt:
                        END.append(-signal.SIGINT)
                        raise
                    except SystemExit as ended:
                        if isinstance(ended.code, int | None):
                            END.append(ended.code or 0)
                        raise
                print(child, flush=True)


def become(*, arguments: list[str], cwd: str, env: dict[str, str], files: list[str]) -> None:
    """Be the process of a command line, with stdin, stdout and stderr in files. Raises whatever ends it."""
    os.setsid()  # so the first terminal that it opens controls it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(files):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    how, *rest = sys.argv = arguments
    if how == "-m":
        sys.path[0], sys.argv = cwd, rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(how).parent)
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
