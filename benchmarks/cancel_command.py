"""The time from a cancel to the outcome of a rollout whose agent is a program.

python -m benchmarks.cancel_command [--rollouts 20] [--in-flight 8] [--json]

Each program asks one chat, starts a process in a session of its own, and sleeps. One rollout after the other is
cancelled. The time is from the call of cancel() until the trainer has the outcome with its partial sample. All
processes of the program have ended and its folder is removed before that.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Broken, run
from benchmarks.flight import new_names
from benchmarks.processes import ready_record, running
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.supervise import OnFailure, future, job
from osmosis_grpc.trainer import Trainer

CANCELLED = job("benchmarks.cancelled", OnFailure.RAISE)
PATIENCE = 60.0
"""A program must ask its chat within this many seconds."""
PROGRAM = """
import json, os, subprocess, sys, time, urllib.request

task = json.load(sys.stdin)
data = json.dumps({"model": "policy", "messages": task["messages"]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, headers))
subprocess.Popen(["sleep", "600"], start_new_session=True)
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), task["rollout_id"]), "w").close()
time.sleep(600)
"""


async def measure(rollouts: int, in_flight: int) -> dict[str, Any]:
    """Measure the milliseconds from each cancel to its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.py").write_text(PROGRAM)
        command = ["--command", f"{sys.executable} -S agent.py", "--max-concurrent", str(in_flight)]
        options = ["--grpc-port", "0", "--no-http", "--no-journal", "--log-level", "error"]
        options += ["--drain-timeout", "0", "--json"]
        with running(["-m", "osmosis_grpc.serve", *options, *command], core=0, folder=folder) as process:
            times = sorted(await _times(ready_record(process)["grpc"], Path(folder), rollouts, in_flight))
    return {
        "benchmark": "cancel_command",
        "rollouts": rollouts,
        "in_flight": in_flight,
        "p50_ms": round(statistics.median(times) * 1000, 1),
        "max_ms": round(times[-1] * 1000, 1),
    }


async def _times(address: str, folder: Path, rollouts: int, in_flight: int) -> list[float]:
    """Return the seconds from each cancel to its outcome."""
    names, times = new_names(), []
    async with Trainer([address], EchoPolicy()) as trainer:

        def start() -> tuple[str, "asyncio.Future[Any]"]:
            name = next(names)
            question = [{"role": "user", "content": "hello"}]
            return name, future(CANCELLED, trainer.rollout(rollout_id=name, messages=question))

        open_rollouts = [start() for _ in range(min(in_flight, rollouts))]
        for number in range(rollouts):
            name, ended = open_rollouts.pop(0)
            async with asyncio.timeout(PATIENCE):
                while not (folder / name).exists():
                    await asyncio.sleep(0.01)
                began = time.perf_counter()
                await trainer.cancel(name)
                outcome = await ended
                times.append(time.perf_counter() - began)
            if outcome.status != "CANCELLED" or "main" not in outcome.samples:
                raise Broken(f"rollout {name} ended {outcome.status} with the samples {list(outcome.samples)}")
            if number + in_flight < rollouts:
                open_rollouts.append(start())
    return times


if __name__ == "__main__":
    run(__doc__, measure, rollouts=20, in_flight=8)
