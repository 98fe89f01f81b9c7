"""A server is killed while programs run in its sandboxes. No process and no folder of them is left."""

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import until

pytestmark = pytest.mark.slow

SERVER = """
import asyncio, os, sys, tempfile
from pathlib import Path
from osmosis_grpc.tools.sandbox import LocalSandbox

async def run(method, number):
    async with LocalSandbox(method=method) as box:
        async with await box.snapshot() as snapshot, snapshot.fork() as fork:
            daemon = f"env -i setsid sleep {number} & setsid sleep {number} & sleep {number}"
            await asyncio.gather(*(each.run(daemon, seconds=600) for each in (box, fork)))

async def main():
    await asyncio.gather(*(run(sys.argv[1], sys.argv[2]) for _ in range(3)))

asyncio.run(main())
"""


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.row("ARL 40")
async def test_a_killed_server_leaves_no_process_and_no_folder(method, group, tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    number = str(1_000_000 + secrets.randbelow(1_000_000))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        method,
        number,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    running = f"sleep\x00{number}"
    try:
        await until(lambda: len(processes_with(running)) == 18)  # three for each sandbox
        assert len(list(tmp_path.glob("osmosis-*"))) == 9
    finally:
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        await process.wait()
    await until(lambda: processes_with(running) == [])
    await until(lambda: list(Path(tmp_path).glob("osmosis-*")) == [])
