"""`serve --workers` as processes for tests."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from tests.processes import serving
from tests.waiting import wait_until

AGENT = """
import asyncio
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"
    replayable = True
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(3):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": "go on"})
        return ctx.complete(messages, reward=0.5)

class Once(Agent):
    name = "once"
    replayable = False

agent_loop = Agent()
once = Once()
"""
QUESTION = [{"role": "user", "content": "hello"}]


@dataclass
class Started:
    """A server with workers."""

    process: Popen
    """The supervisor."""
    ready: dict

    @property
    def ports(self) -> list[int]:
        return [row["port"] for row in self.ready["workers"]]

    @property
    def targets(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def pids(self) -> dict[int, int]:
        """The processes of the workers now, by their ports: a restarted worker has another one."""
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in map(int, children.split()):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/stat").read_text()
        return found

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def started(folder: Path, *arguments: str, workers: int = 2, module: bool = True, **options) -> Iterator[Started]:
    """Start a server with workers in a folder, and wait at the end until no process of it is left."""
    (folder / "agents.py").write_text(AGENT)
    served = ("-m", "agents:agent_loop") if module else ()
    command = ("--workers", str(workers), *served, "--state-dir", "state", *arguments)
    pids: set[int] = set()
    with serving(*command, cwd=folder, **options) as (process, ready):
        server = Started(process, ready)
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):
                pids |= {*server.pids()}
    wait_until(lambda: not any(runs(pid) for pid in pids), "a worker outlives its supervisor")


def runs(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
