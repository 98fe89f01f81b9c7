"""What a run needs around the system under test: models, the engine, the agents, and the adapter.

All of them are processes of their own, so their CPU and memory can be told apart. What they print goes to files in the
folder of the stage.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.known import HERE, System
from comparison.models import Model, make

CLOCK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stage:
    """A running engine with its agents."""

    folder: Path
    model: Model
    engine: subprocess.Popen[str]
    agents: subprocess.Popen[str]
    port: int

    @property
    def logs(self) -> tuple[Path, Path]:
        """The log of the engine and that of the agents."""
        return self.folder / "engine.jsonl", self.folder / "agents.jsonl"


@dataclass(frozen=True)
class Opened:
    """The process of an adapter, ready for orders."""

    process: subprocess.Popen[str]

    def order(self, **order: Any) -> dict[str, Any]:
        """Give an order, and wait for the answer."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(_wait(self.process, "RESULT "))
        return answer


@contextmanager
def stage(model: str, keep: Path | None = None) -> Iterator[Stage]:
    """Start the engine and the agents with one of the models. `keep` is where their logs stay; it is emptied first."""
    with tempfile.TemporaryDirectory(prefix="comparison-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = keep.resolve() if keep else Path(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder / "models")
        where = folder / "models" / model
        log, agents_log = folder / "engine.jsonl", folder / "agents.jsonl"
        engine = stack.enter_context(_module(folder, "comparison.engine", "0", str(where), str(log)))
        port = int(_wait(engine, "READY "))
        agents = stack.enter_context(_module(folder, "comparison.agents", str(folder / "agents"), str(agents_log)))
        _wait(agents, "READY")
        yield Stage(folder, Model.load(where), engine, agents, port)


@contextmanager
def opened(system: System, on: Stage, python: Path | None = None) -> Iterator[Opened]:
    """Start the adapter of a system in the environment of the system."""
    folder = on.folder / system.name
    folder.mkdir()
    place = {
        "engine": f"http://127.0.0.1:{on.port}/v1",
        "model": str(on.folder / "models" / on.model.name),
        "agents": str(on.folder / "agents"),
        "agents_log": str(on.logs[1]),
        "folder": str(folder),
        "ports": free_ports(4),
    }
    orders = ("comparison.adapter", system.module, json.dumps(place))
    with _module(folder, *orders, python=str(python or system.python)) as process:
        _wait(process, "READY")
        yield Opened(process)


@contextmanager
def _module(folder: Path, *command: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1,localhost"}
    with (folder / f"{command[0]}.log").open("ab") as errors:
        process = subprocess.Popen(
            [python, "-m", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, cwd=HERE.parent,
        )  # fmt: skip
        try:
            yield process
        finally:
            assert process.stdin
            process.stdin.close()
            if command[0] != "comparison.adapter":
                process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[str], mark: str) -> str:
    """Return the rest of the first line that begins with `mark`."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(mark):
            return line.removeprefix(mark)
    raise RuntimeError(f"{process.args} ended before it said {mark.strip()}")


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def used(root: int) -> tuple[float, float]:
    """Return the CPU seconds and the MB of memory of a process with all its children. Shared pages count once."""
    seconds = memory = 0.0
    for pid in _tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            memory += int(re.search(r"Pss: *(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) / 1000  # type: ignore[index]
        except (OSError, IndexError):
            continue
        seconds += sum(int(fields[n]) for n in (11, 12, 13, 14)) / CLOCK
    return seconds, memory


def _tree(root: int) -> list[int]:
    out, queue = [], [root]
    while queue:
        pid = queue.pop()
        out.append(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                queue += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return out
