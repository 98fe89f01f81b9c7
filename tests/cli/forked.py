"""Command lines of Python, each in a process that is forked from one which has imported the project already.

Starting Python and importing takes a second and more; what a command then does takes a fraction of it.
`run` is that of tests.processes otherwise, with warnings as errors. Commands that start gRPC are
not for here: it does not survive a fork that comes after it began.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.processes import ROOT


class Forked:
    """Used as `with Forked("a.module", ...) as forked`: these are imported beforehand."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str]

    def __enter__(self) -> "Forked":
        command = [sys.executable, "-W", "error", "-m", "tests.cli.forked", *self._modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str, cwd: Path = ROOT, env: Any = os.environ) -> subprocess.CompletedProcess[str]:
        """`python -W error -m MODULE ...` or `python -W error -c CODE ...`, to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            job = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "out": str(out), "err": str(err)}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


def serve(*modules: str) -> None:
    """Run what is asked for on stdin, one after another, and tell the exit codes."""
    for module in modules:
        __import__(module)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(*, arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Be the process of a command line. Raises whatever ends it."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    how, what, *rest = arguments
    sys.path[0] = "" if how == "-c" else cwd
    sys.argv = [how, *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    serve(*sys.argv[1:])
