"""Processes are killed by their markers, also by many threads at once."""

import asyncio
import secrets
import signal
import sys

import pytest

from osmosis_grpc.tools.reaper import MARKER
from osmosis_grpc.tools.workspace import kill_marked
from tests.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")


async def sleeping(marker, command="exec sleep 600"):
    return await asyncio.create_subprocess_exec("/bin/sh", "-c", command, env={MARKER: marker}, start_new_session=True)


async def test_many_threads_each_kill_the_processes_of_their_marker_and_no_other():
    markers = [secrets.token_hex(16) for _ in range(12)]
    ended = [await sleeping(marker) for marker in markers[1:]]
    stays = await sleeping(markers[0])
    try:
        kills = [asyncio.to_thread(kill_marked, {marker: None}) for marker in markers[1:] * 3]
        await asyncio.gather(*kills)
        assert [await each.wait() for each in ended] == [-signal.SIGKILL] * 11
        assert stays.returncode is None
    finally:
        stays.kill()
        await stays.wait()


async def test_a_marker_of_a_workspace_has_its_programs_and_that_of_a_program_only_its_own():
    marker = secrets.token_hex(16)
    first, second = await sleeping(f"{marker}.1"), await sleeping(f"{marker}.2")
    await asyncio.to_thread(kill_marked, {f"{marker}.1": None})
    assert (await first.wait(), second.returncode) == (-signal.SIGKILL, None)
    await asyncio.to_thread(kill_marked, {marker: None})
    assert await second.wait() == -signal.SIGKILL


async def test_processes_that_start_others_without_a_marker_are_killed_with_their_descendants(tmp_path):
    marker, path = secrets.token_hex(16), tmp_path / "pid"
    parent = await sleeping(marker, f"env -i sleep 600 & echo $! >{path}; wait")
    pid = int(await until(lambda: path.exists() and path.read_text().strip()))
    await until(lambda: _command(pid).startswith("sleep"))
    await asyncio.to_thread(kill_marked, {marker: None})
    await parent.wait()
    await until(lambda: _command(pid) == "")


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
