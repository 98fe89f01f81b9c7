"""The state folders that the viewer is measured and tested with, and a viewer that is a process."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.policy import scripted
from benchmarks.work import agent_loop
from osmosis_grpc.protocol.types import Group
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

QUESTION = [{"role": "user", "content": "Take as many turns as you may."}]


async def write_group(folder: Path, rollouts: int, turns: int, tokens: int) -> None:
    """Run the rollouts `long-0`, `long-1`, ... of the group `long` with a server that writes to a state folder.

    Each reply has so many tokens. Raises RuntimeError if a rollout does not complete.
    """
    async with (
        AgentServer([agent_loop], port=0, state_dir=folder) as server,
        Trainer([server.address], scripted(tokens)) as trainer,
    ):
        outcomes = await asyncio.gather(
            *(
                trainer.rollout(
                    rollout_id=f"long-{index}", messages=QUESTION, max_turns=turns, group=Group("long", index, rollouts)
                )
                for index in range(rollouts)
            )
        )
    for outcome in outcomes:
        if outcome.status.value != "COMPLETED":
            raise RuntimeError(f"{outcome.rollout_id} ended {outcome.status.value}")


@contextmanager
def viewing(*arguments: str, cwd: Path | None = None, log: Path | None = None) -> Iterator[str]:
    """Run `osmosis-grpc view ARGUMENTS` on a free port. Yields the address of its first page.

    The viewer logs to the file `log`, or to a temporary file. Raises RuntimeError with the log of a viewer that does
    not start.
    """
    command = [sys.executable, "-m", "osmosis_grpc", "view", *arguments, "--port", "0", "--json"]
    with (
        open(log, "w+") if log is not None else tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=cwd) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                said.seek(0)
                raise RuntimeError(said.read())
            yield json.loads(line)["url"]
        finally:
            process.terminate()
