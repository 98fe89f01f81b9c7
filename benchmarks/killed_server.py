"""A server is killed while its rollouts run programs in sandboxes: what is left of it, and what its next process does.

python -m benchmarks.killed_server [--rollouts 1000] [--saved 50] [--json]

A server with a journal runs `rollouts` rollouts at once, each with a program in a sandbox of its own. Beside them short
rollouts end one after the other; they have a sandbox, too. When all programs run and `saved` short rollouts have ended,
the server is killed. When no process and no folder of its sandboxes is left, it starts again and ends all rollouts.

Then a process without a server does the same with AgenticRollout, and saves trajectories to a file until it is killed.

Fails if something is left after two minutes, if a rollout or a saved trajectory is lost, or if one is not whole.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.processes import environment_with, ready_record
from benchmarks.sandboxed import DONE, PROGRAM, SHORT, llm
from osmosis_grpc.agentic import Trajectory, TrajectoryClient, load_trajectories, policy_of
from osmosis_grpc.compat.agentic.files import TrajectoryFile
from osmosis_grpc.protocol.types import RolloutOutcome
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.trainer import RolloutClient, Trainer

ROLLOUT = job("benchmarks.killed_server", OnFailure.RAISE)
STARTED, CLEAN = 600.0, 120.0
"""The most seconds until all programs run, and until nothing is left."""
BESIDE = 8
"""Slots of the server for short rollouts."""


async def measure(rollouts: int, saved: int) -> dict[str, Any]:
    """Measure both processes. Times are in seconds."""
    made: dict[str, Any] = {"rollouts": rollouts}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # the users of the sandboxes pass through
        made |= await _server(Path(folder), rollouts, saved)
        made |= await _file(Path(folder), rollouts, saved)
    return made


async def _server(folder: Path, rollouts: int, saved: int) -> dict[str, Any]:
    """Kill a server, see what is left, and start it again."""
    left = Left(folder)
    short: list[RolloutOutcome] = []
    slowest = 0.0
    progress(f"killed_server: {rollouts} programs start")
    with _process(left.seconds, folder, _serve(folder, 0, rollouts)) as process:
        target = ready_record(process)["grpc"]
        async with Trainer([target], policy_of(llm)) as trainer, contextlib.AsyncExitStack() as tasks:

            async def one(name: str, question: str) -> RolloutOutcome:
                return await trainer.rollout(rollout_id=name, messages=[{"role": "user", "content": question}])

            async def shorts() -> None:
                nonlocal slowest
                while not recovered.is_set():
                    begun = time.perf_counter()
                    short.append(await one(f"short-{len(short)}", SHORT))
                    if killed is None:
                        slowest = max(slowest, time.perf_counter() - begun)

            recovered, killed = asyncio.Event(), None
            begun = time.perf_counter()
            running = [child(ROLLOUT, one(f"r{number}", PROGRAM)) for number in range(rollouts)]
            beside = child(ROLLOUT, shorts())
            for task in (*running, beside):
                tasks.callback(task.cancel)
            await _until(lambda: left.programs() == 2 * rollouts and len(short) >= saved, STARTED)
            figures = {"start_s": _since(begun)} | _use(process.pid)
            killed = time.perf_counter()
            process.kill()
            await _until(lambda: not left.programs() and not left.folders(), CLEAN)
            figures["clean_s"] = _since(killed)
            progress(f"killed_server: nothing is left after {figures['clean_s']} s; the server starts again")
            port = int(target.rpartition(":")[2])
            with _process("", folder, _serve(folder, port, rollouts)) as second:
                begun = time.perf_counter()
                ready_record(second)
                outcomes = await asyncio.gather(*running)
                figures["recover_s"] = _since(begun)
                recovered.set()
                await beside
                _check_outcomes([*outcomes, *short])
                async with RolloutClient(target) as client:
                    trajectories = [each async for each in TrajectoryClient(client).all()]
                _check({f"r{number}" for number in range(rollouts)} | {each.rollout_id for each in short}, trajectories)
                await _until(lambda: not left.folders(), CLEAN)
    return {f"server_{name}": value for name, value in figures.items()} | {
        "server_short_rollouts": len(short),
        "server_slowest_short_s": round(slowest, 2),
        "server_records": len(trajectories),
    }


async def _file(folder: Path, rollouts: int, saved: int) -> dict[str, Any]:
    """Kill a process that saves its trajectories to a file, and read the file."""
    left, path = Left(folder), folder / "saved.jsonl"
    progress(f"killed_server: {rollouts} programs start without a server")
    with _process(left.seconds, folder, ["benchmarks.sandboxed", str(path), str(rollouts)]) as process:
        begun = time.perf_counter()
        await _until(lambda: left.programs() == 2 * rollouts and _lines(path) >= saved, STARTED)
        figures = {"start_s": _since(begun)} | _use(process.pid)
        begun = time.perf_counter()
        process.kill()
        await _until(lambda: not left.programs() and not left.folders(), CLEAN)
        figures["clean_s"] = _since(begun)
        assert process.stdout is not None
        reported = {line.strip() for line in process.stdout if line.endswith("\n")}
    file = TrajectoryFile(path)
    file.append([Trajectory(request_id="next", is_completed=True)])
    kept = load_trajectories(path)
    if path.read_bytes().count(b"\n") != len(kept):
        raise Broken("the file of trajectories has a line that is no trajectory")
    missing = {*reported, "next"} - {each.request_id for each in kept}
    if missing or len({each.request_id for each in kept}) != len(kept) or not all(each.is_completed for each in kept):
        raise Broken(f"the file of trajectories has lost {sorted(missing)}, or has a record twice or without its end")
    return {f"file_{name}": value for name, value in figures.items()} | {"file_records": len(kept)}


class Left:
    """What is left of the sandboxes of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds = str(1_000_000 + secrets.randbelow(1_000_000))
        """For how long its programs sleep. It tells them from those of other processes."""

    def programs(self) -> int:
        """Return the number of programs that sleep."""
        words, found = f"sleep\0{self.seconds}\0".encode(), 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
                found += file.read() == words
        return found

    def folders(self) -> int:
        """Return the number of folders of sandboxes."""
        return sum(1 for _ in self._folder.glob("osmosis-*"))


def _serve(folder: Path, port: int, rollouts: int) -> list[str]:
    return [
        "osmosis_grpc.serve", "-m", "benchmarks.sandboxed:agent_loop", "--no-validate", "--no-http", "--json",
        "--grpc-port", str(port), "--state-dir", str(folder / "state"), "--log-level", "error",
        "--max-concurrent", str(rollouts + BESIDE), "--drain-timeout", "0",
    ]  # fmt: skip


@contextlib.contextmanager
def _process(sleep: str, folder: Path, arguments: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a Python module, whose programs sleep for `sleep` seconds. Kill it at the end."""
    environment = environment_with({"TMPDIR": str(folder), "SLEEP": sleep})
    with subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _use(pid: int) -> dict[str, Any]:
    """Return the memory, threads and open files of a process."""
    rows = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "rss_mb": round(int(rows["VmHWM"].split()[0]) * 1024 / 1e6),
        "threads": int(rows["Threads"]),
        "open_files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def _check_outcomes(outcomes: list[RolloutOutcome]) -> None:
    for each in outcomes:
        if (each.status, each.finish_reason) != ("COMPLETED", "final_answer"):
            raise Broken(f"{each.rollout_id} ended as {each.status}, {each.finish_reason}: {each.failure}")


def _check(ids: set[str], trajectories: list[Trajectory]) -> None:
    """Check that there is one whole trajectory for each id. Raises Broken."""
    if sorted(ids) != sorted(each.request_id for each in trajectories):
        raise Broken(f"{len(ids)} rollouts have ended, and there are {len(trajectories)} trajectories")
    for each in trajectories:
        results = [step.tool_result["stdout"] for step in each.steps if step.tool_result is not None]
        wanted = [] if each.request_id.startswith("short") else ["the program has ended\n"]
        if not each.is_completed or f"Final Answer: {each.get_final_response()}" != DONE or results != wanted:
            raise Broken(f"the trajectory {each.request_id} is not whole: {each.stop_reason}, {results}")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def _until(condition: Callable[[], Any], seconds: float) -> None:
    """Wait for a condition. A look takes time with thousands of processes, so it has a tenth of the time.

    Raises Broken after `seconds`.
    """
    begun = time.monotonic()
    while True:
        looked = time.monotonic()
        if await asyncio.to_thread(condition):
            return
        if looked - begun > seconds:
            raise Broken(f"not true within {seconds:g} s, at line {condition.__code__.co_firstlineno}")
        await asyncio.sleep(0.01 + 9 * (time.monotonic() - looked))


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


if __name__ == "__main__":
    run(__doc__, measure, rollouts=1000, saved=50)
