"""A local sandbox: its programs, files, limits and end, with each method of isolation."""

import asyncio
import os
import re
import tempfile
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.tools import bash_tool, search_tool
from osmosis_grpc.tools.sandbox import (
    Isolation,
    LocalSandbox,
    Protection,
    SandboxError,
    SandboxFileError,
    SandboxLimits,
    SandboxRefused,
    read_note,
)
from tests.tools.sandbox.left_over import processes_with
from tests.waiting import until

MB = 2**20


@pytest.mark.parametrize("path", ["out/x", "here/x"])
async def test_a_folder_that_is_a_link_leads_nowhere(isolated, tmp_path, path):
    await isolated.run(f"ln -s {tmp_path} out; ln -s . here")
    with pytest.raises(SandboxFileError, match="symbolic link"):
        await isolated.write_file(path, b"x")
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_protection_is_refused_by_name():
    with pytest.raises(
        SandboxRefused, match=r'require: method="processes" cannot give files, network .*; leave out `method`'
    ) as got:
        async with LocalSandbox(method="processes", require=["network", Protection.FILES]):
            raise AssertionError("it has started")
    assert got.value.missing == {Protection.NETWORK, Protection.FILES}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"require": ["net"]}, "require: 'net' is not one of user, network"),
        ({"method": "docker"}, "method: 'docker' is not one of bubblewrap"),
        ({"read_only": ["/no/such"]}, "read_only: /no/such is not a folder"),
    ],
)
def test_a_bad_option_is_named(options, problem):
    with pytest.raises(ValueError, match=problem):
        LocalSandbox(**options)
    with pytest.raises(ValueError, match="memory: 0 is not a positive integer"):
        SandboxLimits(memory=0)


async def test_a_sandbox_works_only_while_it_is_open(method):
    box = LocalSandbox(method=method)
    with pytest.raises(SandboxError, match="not open"):
        await box.run("true")
    async with box:
        marker = (await box.run("echo $OSMOSIS_PROCESS_MARKER")).stdout.decode().strip()
        folder = Path(tempfile.gettempdir()) / f"osmosis-{marker.partition('.')[0]}"
        assert folder.exists()
    await box.close()
    with pytest.raises(SandboxError, match="not open"):
        await box.read_file("x")
    with pytest.raises(SandboxError, match="already started"):
        await box.__aenter__()
    assert not folder.exists()


LIMITS = SandboxLimits(
    cpu_seconds=1, memory=300 * MB, file_bytes=MB, open_files=20, processes=12, folder_bytes=4 * MB, folder_files=50
)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param("while :; do :; done", "137|152", marks=pytest.mark.slow),
        ("{python} -c 'x = bytearray(10**9)'", "MemoryError"),
        ("head -c 2000000 /dev/zero >file; stat -c %s file", "1048576"),
        ("{python} -c 'a = [open(\"/dev/null\") for _ in range(30)]'", "Too many open files"),
        ("exec /bin/sh -c 'for i in $(seq 30); do sleep 5 & done; echo survived'", "(?i)fork|resource"),
    ],
)
async def test_the_limits_hold(method, command, told):
    async with LocalSandbox(method=method, limits=LIMITS) as box:
        if "sleep" in command and Protection.LIMITS not in box.isolation.protections:
            pytest.skip("the number of processes has no limit")
        ended = await box.run(command.replace("{python}", box.python), seconds=20)
        text = f"{ended.exit_code} {ended.stdout.decode()} {ended.stderr.decode()}"
        assert re.search(told, text), text
        assert not ended.timed_out


@pytest.mark.parametrize("fill", ["head -c 900000 /dev/zero >$i", "touch $i-a $i-b $i-c $i-d $i-e $i-f $i-g $i-h"])
async def test_a_program_that_fills_the_disk_is_killed(method, fill):
    async with LocalSandbox(method=method, limits=LIMITS) as small:
        ended = await small.run(f"for i in $(seq 9); do {fill}; done; sleep 600", seconds=60)
        assert (ended.exit_code, ended.disk_full, ended.timed_out) == (137, True, False)
        assert (await small.run("sleep 1; rm -f *; echo again")).stdout == b"again\n", "a full folder can be emptied"
        assert (await small.run(f"for i in $(seq 9); do {fill}; done; sleep 600", seconds=60)).disk_full
        refill = f"for i in $(seq 50 90); do {fill}; done; sleep 600"
        assert (await small.run(refill, seconds=60)).disk_full, "it cannot be filled further"


async def test_a_saved_folder_is_restored_in_another_sandbox(box, tmp_path):
    """Permissions, times, links and names that are no UTF-8 come back. Files that were there before are gone."""
    saved = tmp_path / "turn"
    await box.run("mkdir -p a/b; echo old >a/file; chmod 4640 a/file; ln -s /etc/passwd a/link; mkfifo a/pipe")
    await box.run("touch -d @1234567890 a/file; echo raw >$'a/\\xff'; ln -s .. a/b/up; chmod 750 a/b; chmod 555 a")
    listing = "find . ! -name pipe | sort | while read -r f; do stat -c '%n %a %F' \"$f\"; done; readlink a/link a/b/up"
    before = await box.run(f"{listing}; stat -c %Y a/file; cat a/file")
    assert await box.save(saved, b"a note") == saved.stat().st_size
    assert read_note(saved) == b"a note"
    async with LocalSandbox() as other:
        await other.run("mkdir -p x/y; echo kept >x/y/z; chmod 000 x")
        await other.restore(saved)
        after = await other.run(f"{listing}; stat -c %Y a/file; cat a/file")
    assert (after.stdout, after.stderr) == (before.stdout, b"")
    assert b"./a/file 4640 regular file" in after.stdout, after.stdout


@pytest.mark.parametrize("cut", [1, 10, 200])
async def test_a_saved_folder_that_was_cut_is_refused(tmp_path, cut):
    saved = tmp_path / "turn"
    async with LocalSandbox() as sandbox:
        await sandbox.write_file("f", os.urandom(1000))
        await sandbox.save(saved)
        saved.write_bytes(saved.read_bytes()[:-cut])
        with pytest.raises(SandboxError, match="turn is not a whole saved folder"):
            await sandbox.restore(saved)
        saved.write_bytes(b"something else")
        with pytest.raises(SandboxError, match="turn is not a saved folder"):
            read_note(saved)


async def test_a_folder_that_is_too_large_is_not_saved(tmp_path):
    async with LocalSandbox(limits=LIMITS) as small:
        await small.run("for i in 1 2 3 4 5; do truncate -s 1000000 $i; done")
        with pytest.raises(SandboxError, match="folder_bytes=4194304"):
            await small.save(tmp_path / "turn")
    assert list(tmp_path.iterdir()) == []


async def test_more_folders_can_be_read_but_not_written(isolated):
    folder = Path("/opt") if os.path.isdir("/opt") else None
    if folder is None:
        pytest.skip("there is no /opt")
    assert (await isolated.run(f"ls {folder}")).exit_code == 2
    async with LocalSandbox(method="bubblewrap", read_only=[folder]) as box:
        assert (await box.run(f"ls {folder}")).exit_code == 0
        assert (await box.run(f"touch {folder}/x")).exit_code == 1


@pytest.mark.parametrize("name", ["sleep", "search", "print"])
async def test_the_event_loop_runs_while_a_tool_works(isolated, name, number):
    """A tool that blocks the loop is not cancelled before its limit, which is longer than the limit of a test."""
    await isolated.write_file("long", b"a" * 100)
    pattern = {"command": "search_text", "pattern": "^(a+)+$b", "regex": True}
    bash, search = bash_tool(isolated, timeout=600), search_tool(isolated, timeout=600)
    chosen, arguments, words = {
        "sleep": (bash, {"command": f"sleep {number}"}, f"sleep\x00{number}"),
        "search": (search, pattern, "-I\x00-S\x00-c"),
        "print": (bash, {"command": f"yes canary-{number}"}, f"yes\x00canary-{number}"),
    }[name]
    task = asyncio.create_task(chosen.run(arguments))
    await until(lambda: processes_with(words))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


SOME = Isolation("process", frozenset({Protection.LIMITS}), "bubblewrap is not installed")


def test_the_text_of_an_isolation_says_what_is_in_force_and_what_is_not():
    assert str(SOME) == ("process: limits; not in force: files, network, processes, user (bubblewrap is not installed)")
    assert str(Isolation("all", frozenset(Protection))) == "all: files, limits, network, processes, user"


def test_a_protection_that_is_not_in_force_is_refused_by_name():
    SOME.require([Protection.LIMITS])
    with pytest.raises(SandboxRefused, match=r"require: this machine cannot give network, user .*not installed") as got:
        SOME.require([Protection.USER, Protection.NETWORK, Protection.LIMITS])
    assert got.value.missing == {Protection.USER, Protection.NETWORK}
    assert isinstance(got.value, ToolExecutionError)


def test_an_isolation_without_a_reason_has_no_empty_parentheses():
    some = Isolation("processes", frozenset({Protection.LIMITS}))
    assert str(some) == "processes: limits; not in force: files, network, processes, user"
