"""Runs the blocks of a page in order, in one empty folder, as its reader does.

A `bash` block runs in a shell. A block that starts a server in the foreground gets a shell of its own, as a reader
gives it a second terminal; the next block runs once the server is ready. A `python` block that begins with
`# NAME.py` is saved under that name and run, `# NAME.py, which ends with exit code 1` as well; any other one goes on in
one console with top-level await. Blocks fenced `text` are not run. Free ports take the place of the default ones, and
`serve` gets them as options.
"""

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.ports import quiet_port
from tests.processes import ROOT

PORTS = ("8000", "50051", "60051", "9000", "8100", "9464", "7700", "7701")
"""Ports that pages name; each run of a page puts free ones in their place."""
_SERVES = re.compile(
    r"^(osmosis-grpc (?:serve|view(?!.* --export))|python -m osmosis_grpc\.serve|python -m osmosis_gateway)\b[^&]*$",
    re.M,
)
_BLOCK = re.compile(r"^( *)```(bash|python)\n(.*?)^ *```$", re.S | re.M)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int


def blocks_of(path: Path) -> list[Block]:
    """The page's blocks that are run, in order."""
    page = path.read_text()
    return [
        Block(match[2], textwrap.dedent(match[3]), page.count("\n", 0, match.start()) + 2)
        for match in _BLOCK.finditer(page)
    ]


class Reader:
    """One reader of one page: a folder, terminals, a Python console. Used with `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__console__"}
        self.output: list[str] = []
        """What each block printed."""
        self._stack = ExitStack()
        self.ports = dict(zip(PORTS, (str(quiet_port()) for _ in PORTS), strict=True))
        """The free port for each of PORTS."""

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    async def run(self, block: Block, timeout: float = 50) -> None:
        """Run a block to its end; a server is left running. Raises AssertionError with what it printed."""
        text = block.text
        for port, free in self.ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        if block.language == "bash":
            if _SERVES.search(text):
                grpc, http = self.ports["50051"], self.ports["9000"]
                text = re.sub(r"\bserve ", f"serve --grpc-port {grpc} -p {http} ", text)  # else the default ports
                await asyncio.to_thread(self._serve, text, timeout)
            else:
                await asyncio.to_thread(self._shell, ["bash", "-e", "-m", "-c", text], block, timeout)
            return
        named = re.match(r"# (\w+\.py)(?:, which ends with exit code (\d))?\n", text)
        if named:
            (self.folder / named[1]).write_text(text)
            code = int(named[2] or 0)
            await asyncio.to_thread(self._shell, [sys.executable, named[1]], block, timeout, code)
            return
        code = compile("\n" * block.line + text, "console", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, self.names)
        if inspect.isawaitable(result):
            await asyncio.wait_for(result, timeout)

    @property
    def environment(self) -> dict[str, str]:
        """A new user's: nothing of ours is set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
        return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def _shell(self, command: list[str], block: Block, timeout: float, code: int = 0) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.output.append(done.stdout)
        assert done.returncode == code, f"line {block.line}: exit code {done.returncode}\n{block.text}\n{done.stdout}"

    def _serve(self, text: str, timeout: float) -> None:
        log = self._stack.enter_context((self.folder / f"terminal-{len(os.listdir(self.folder))}.log").open("w"))
        process = subprocess.Popen(
            ["bash", "-e", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._stack.callback(process.wait)
        self._stack.callback(_kill_group, process)
        deadline = asyncio.run(_until_ready(process, Path(log.name), timeout))
        assert deadline, f"the server did not start:\n{text}\n{Path(log.name).read_text()}"


async def _until_ready(process: "subprocess.Popen[bytes]", log: Path, timeout: float) -> bool:
    """Wait for the line that says that the server listens."""
    async with asyncio.timeout(timeout):
        while process.poll() is None:
            if re.search(r"\b(serving|listening|ready|Ctrl-C)\b", log.read_text()):
                return True
            await asyncio.sleep(0.05)  # between two looks at the log
    return False


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


PAGES = {
    name: ROOT / name
    for name in (
        "README.md",
        "docs/agents.md",
        "docs/agents-you-have.md",
        "docs/agentic.md",
        "docs/workflows.md",
        "docs/test.md",
        "docs/eval.md",
        "docs/trainers.md",
        "docs/long-training.md",
        "docs/asynchronous.md",
        "docs/policies.md",
        "docs/operators.md",
        "docs/observe.md",
        "docs/implementers.md",
        "docs/look.md",
        "docs/viewer.md",
        "docs/fork.md",
        "docs/control.md",
        "docs/query.md",
        "docs/export.md",
        "docs/sandbox.md",
    )
}
