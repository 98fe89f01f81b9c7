"""One scenario for trainers made from stubs in any language.

A client gets two addresses: an agent server, and one that drains. It serves TrainerService on a free port, runs one
rollout, sends one Init with a wrong field and one Init to the draining server, and prints one JSON object on the last
line of its output.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT

CLIENTS = ROOT / "tests" / "clients"
EXPECTED = {
    "created": True,
    "tools": 4,
    "chats": [["main", 1]],
    "status": "COMPLETED",
    "ids": [1, 2, 3, 4, 5],
    "logprobs": [-0.5, -0.25],
    "mask_runs": [3, 2],
    "invalid": {"reason": "INVALID_FIELD", "fields": ["rollout_id"], "retry_seconds": None},
    "draining": {"reason": "DRAINING", "fields": [], "retry_seconds": 5},
}
"""The JSON object that each client prints."""


async def command(*arguments: str, cwd: Path, timeout: float = 240, env: Mapping[str, str] | None = None) -> str:
    """Runs a command at low priority and returns its output. Raises AssertionError with all output if it fails."""
    process = await asyncio.create_subprocess_exec(
        "nice",
        "-n",
        "5",
        *arguments,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{' '.join(arguments)}\n{out.decode()}{err.decode()}"
    return out.decode()


async def run_scenario(serve: Any, *client: str, cwd: Path) -> Any:
    """Runs the command line of a client against two agent servers. Returns the object that it prints."""
    server, draining = await serve(), await serve()
    await draining.drain()
    out = await command(*client, server.address, draining.address, cwd=cwd, timeout=60)
    return read_result(out)


def read_result(out: str) -> Any:
    """Returns the JSON object on the last line of a client's output."""
    return json.loads(out.splitlines()[-1])


def need(programs: Sequence[str], install: str) -> None:
    """Skips the test if a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: {install}")
