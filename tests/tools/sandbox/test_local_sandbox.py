"""A local sandbox: its programs, files, limits and end, with each method of isolation."""

import asyncio
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.tools import bash_tool, search_tool
from osmosis_grpc.tools.program_caches import PYTEST, WRITES_NOTHING
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
from tests.waiting import turns, until

MB = 2**20


async def test_a_program_has_its_input_folder_and_variables_and_two_outputs(box, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    ended = await box.run("cat; pwd; echo error >&2; env; exit 3", stdin=b"the task\n", environment={"MINE": "1"})
    assert (ended.exit_code, ended.timed_out, ended.stderr) == (3, False, b"error\n")
    task, folder, *variables = ended.stdout.decode().splitlines()
    assert (task, folder) == ("the task", box.folder)
    names = {line.partition("=")[0] for line in variables} - {"PWD", "OLDPWD", "SHLVL", "_"}
    own = {"PATH", "HOME", "LANG", "TMPDIR", "OSMOSIS_PROCESS_MARKER"}
    assert names == {*own, "MINE", *WRITES_NOTHING, PYTEST}


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["no-such-program"], 127), ("exit 200", 200), ("kill -9 $$", 137), ("kill $$", 143)],
)
async def test_the_exit_code_is_that_of_a_shell(box, command, code):
    assert (await box.run(command)).exit_code == code


async def test_the_newest_output_is_kept(box):
    ended = await box.run("seq 10000; seq 5 >&2", output_bytes=12)
    assert (ended.stdout, ended.stdout_truncated) == (b"\n9999\n10000\n", True)
    assert (ended.stderr, ended.stderr_truncated) == (b"1\n2\n3\n4\n5\n", False)


async def test_the_time_limit_kills_every_process_and_keeps_the_output(box, number):
    ended = await box.run(
        f"echo begun; trap '' TERM; setsid sleep 600 & env -i setsid sleep {number}1 & sleep 600", seconds=0.5
    )
    assert (ended.exit_code, ended.timed_out, ended.stdout) == (137, True, b"begun\n")
    if box.isolation.protections & {Protection.USER, Protection.PROCESSES}:
        assert processes_with(f"sleep\x00{number}1") == []


async def test_a_cancelled_run_leaves_no_process(method, number):
    async with LocalSandbox(method=method) as box:
        task = asyncio.create_task(box.run(f"touch begun; setsid sleep {number} & sleep {number}"))
        while not await box.list_files():
            await asyncio.sleep(0.01)  # between two looks
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(f"sleep\x00{number}") == []


async def test_files_are_written_read_listed_and_removed(box):
    await box.write_file("a/b/c.txt", b"\xff\x00\r\n")
    assert await box.read_file(f"{box.folder}/a/../a/b/c.txt") == b"\xff\x00\r\n"
    assert (await box.run("cat a/b/c.txt; echo more >>a/b/c.txt; chmod 755 a/b/c.txt; echo x >a/x")).stdout[
        :1
    ] == b"\xff"
    await box.write_file("a/b/c.txt", b"new")
    assert (await box.run("cat c.txt; stat -c %a c.txt; ls -A", cwd="a/b")).stdout == b"new755\nc.txt\n"
    found = [(file.path, file.is_folder, file.bytes) for file in await box.list_files(depth=3)]
    assert found == [("a", True, 0), ("a/b", True, 0), ("a/b/c.txt", False, 3), ("a/x", False, 2)]
    assert [file.path for file in await box.list_files("a/x")] == ["a/x"]
    await box.remove_file("a/x")
    assert [file.path for file in await box.list_files("a")] == ["a/b"]


@pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd", "a/../../x", "/work/../etc/passwd", "x\0y", "\ud800"])
async def test_a_path_outside_of_the_folder_is_refused(isolated, path):
    for call in (isolated.read_file(path), isolated.write_file(path, b""), isolated.list_files(path)):
        with pytest.raises(SandboxFileError, match="path"):
            await call


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("ln -s /etc/passwd file", "symbolic link"),
        ("mkdir file", "folder|directory"),
        ("mkfifo file", "not a file"),
        ("head -c 101 /dev/zero >file", "100 bytes"),
        ("true", "does not exist"),
    ],
)
async def test_only_a_file_is_read_and_replaced(isolated, made, problem):
    await isolated.run(made)
    with pytest.raises(SandboxFileError, match=f"file.*({problem})"):
        await isolated.read_file("file", most_bytes=100)
    with pytest.raises(SandboxFileError, match="file"):
        await isolated.write_file("file", b"x" * 101, most_bytes=100)


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
        assert (await small.run("rm -f *; echo again")).stdout == b"again\n"


async def test_a_snapshot_begins_a_new_sandbox(box):
    await box.run("mkdir -p a; echo old >a/file; chmod 640 a/file; ln -s file a/link; mkfifo a/pipe; chmod 555 a")
    async with await box.snapshot() as snapshot:
        assert snapshot.bytes > 0
        await box.run("chmod 755 a; echo changed >a/file")
        async with snapshot.fork() as first, snapshot.fork() as second:
            seen = await first.run("cat a/link; stat -c '%a %u' a/file a; id -u; ls a")
            (old, mode, folder_mode, user, *names) = seen.stdout.decode().splitlines()
            assert (old, names) == ("old", ["file", "link"])
            assert (mode, folder_mode) == (f"640 {user}", f"555 {user}")
            await first.run("chmod 755 a; echo first >a/file")
            assert await second.read_file("a/file") == b"old\n"
            assert await box.read_file("a/file") == b"changed\n"


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


async def test_a_snapshot_is_refused_while_a_program_runs_and_if_it_is_too_large(isolated):
    task = asyncio.create_task(isolated.run("touch begun; sleep 600"))
    while not await isolated.list_files():
        await asyncio.sleep(0.01)  # between two looks
    with pytest.raises(SandboxError, match="a program runs"):
        await isolated.snapshot()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with LocalSandbox(limits=LIMITS) as small:
        await small.run("for i in 1 2 3 4 5; do truncate -s 1000000 $i; done")
        with pytest.raises(SandboxError, match="folder_bytes=4194304"):
            await small.snapshot()


async def test_what_begins_while_a_snapshot_is_made_is_not_in_it(isolated):
    await isolated.run("for i in $(seq 1500); do echo old >$i; done")
    copying = asyncio.create_task(isolated.snapshot())
    await turns(1)  # the snapshot begins first
    changes = [
        isolated.run("for i in *; do echo new >$i; done"),
        isolated.write_file("written", b"new"),
        isolated.remove_file("7"),
    ]
    await asyncio.gather(*changes)
    async with await copying as snapshot, snapshot.fork() as fork:
        assert (await fork.run("cat * | sort | uniq -c")).stdout.split() == [b"1500", b"old"]
    assert (await isolated.run("cat * | sort | uniq -c")).stdout.split()[-1:] == [b"new"]


async def test_more_folders_can_be_read_but_not_written(isolated):
    folder = Path("/opt") if os.path.isdir("/opt") else None
    if folder is None:
        pytest.skip("there is no /opt")
    assert (await isolated.run(f"ls {folder}")).exit_code == 2
    async with LocalSandbox(method="bubblewrap", read_only=[folder]) as box:
        assert (await box.run(f"ls {folder}")).exit_code == 0
        assert (await box.run(f"touch {folder}/x")).exit_code == 1


async def test_programs_at_once_do_not_end_each_other(box, number):
    """Each of the short ones leaves daemons, which end with it; the long one runs on."""
    long = asyncio.create_task(
        box.run(f"touch begun; while [ ! -e go ]; do sleep 0.05; done; sleep {number} & echo end")
    )
    await until(lambda: processes_with(f"sleep {number} & echo end"))
    short = [
        box.run(f"setsid sleep {number}5 & nohup sleep {number}5 & echo {n}; exit {n}", seconds=60) for n in range(8)
    ]
    ends = await asyncio.gather(*short, box.run(f"setsid sleep {number} & sleep {number}", seconds=0.2))
    assert [(ended.exit_code, ended.stdout) for ended in ends] == [*[(n, b"%d\n" % n) for n in range(8)], (137, b"")]
    assert processes_with(f"sleep\x00{number}5") == processes_with(f"sleep\x00{number}") == []
    assert not long.done()
    await box.write_file("go", b"")
    ended = await long
    assert (ended.exit_code, ended.stdout) == (0, b"end\n"), ended
    assert processes_with(f"sleep\x00{number}") == []


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


async def test_a_process_without_a_marker_ends_when_no_other_program_runs(box, number):
    if not box.isolation.protections & {Protection.USER, Protection.PROCESSES}:
        pytest.skip("it survives without a user of its own")
    long = asyncio.create_task(box.run("while [ ! -e go ]; do sleep 0.05; done"))
    await box.run(f"env -i setsid sleep {number} & true")
    await box.write_file("go", b"")
    assert (await long).exit_code == 0
    assert processes_with(f"sleep\x00{number}") == []


async def test_a_signal_number_is_not_a_negative_code(box):
    ended = await box.run("kill -SEGV $$")
    assert ended.exit_code == 128 + signal.SIGSEGV


async def test_the_processes_of_a_closed_sandbox_are_gone(method, number):
    async with LocalSandbox(method=method) as box:
        task = asyncio.create_task(box.run(f"sleep {number}"))
        await until(lambda: processes_with(f"sleep\x00{number}"))
    with pytest.raises(SandboxError):
        await box.run("true")
    assert (await task).exit_code == 137
    assert processes_with(f"sleep\x00{number}") == []


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


@pytest.mark.parametrize(
    ("require", "error"),
    [
        ("network", r"^require: 'network' is a text; give a list, such as \['network'\]$"),
        (["netwrok"], r"^require: 'netwrok' is not one of user, network, processes, files, limits$"),
    ],
)
def test_a_wrong_protection_is_refused_by_name(require, error):
    with pytest.raises(ValueError, match=error):
        LocalSandbox(require=require)
